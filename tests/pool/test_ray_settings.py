"""Engines on Ray without a cluster: settings that contradict each other, and a Ray that is not installed."""

from __future__ import annotations

import sys

import pytest
from support.doubles.fake_engine import MakeFake

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.ray.engines import RayEngines
from voxcpm_grpc.settings.schema import Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ray": {"min_engines": 2, "max_engines": 1}}, "max_engines is 1; it must be at least ray.min_engines, 2"),
        ({"devices": ("0", "1")}, "devices is 0,1, but on Ray the cluster chooses them"),
        ({"engine": {"device": "cuda:1"}}, "engine.device is cuda:1, but on Ray every engine sees its own GPU only"),
    ],
)
async def test_settings_that_do_not_fit_together(settings, message):
    with pytest.raises(StartupError, match=message):
        RayEngines(MakeFake(), Settings.model_validate(settings))


async def test_ray_that_is_not_installed_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    pool = EnginePool(RayEngines(MakeFake(), Settings()))
    with pytest.raises(StartupError, match=r"pip install 'voxcpm-grpc\[ray\]'"):
        await pool.start()
    await pool.close()
