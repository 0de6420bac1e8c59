"""Random adapters for load tests are adapters that an engine serves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.engines.checkpoints import TINY
from support.engines.tiny import engine, finished, run, with_adapter

from tools import make_lora
from voxcpm_grpc import lora_files
from voxcpm_grpc.models.base import AdapterOptions
from voxcpm_grpc.request import Request, Sampling

KINDS = frozenset({"attention", "projections"})


@pytest.mark.parametrize(("targets", "diffuses"), [("lm", False), ("all", True)])
def test_an_engine_serves_them(monkeypatch, tmp_path, targets, diffuses):
    flags = ["--count", "2", "--rank", "3", "--targets", targets]
    monkeypatch.setattr(sys, "argv", ["make_lora.py", str(TINY), str(tmp_path), *flags])
    make_lora.main()
    eng = engine(adapters=AdapterOptions(2, 8, KINDS))
    fingerprints = set()
    for folder in sorted(tmp_path.iterdir()):
        fingerprints.add(lora_files.fingerprint(folder))
        weights = eng.model.read_adapter(folder)
        assert weights.parts == ({"generate", "advance"} if diffuses else {"advance"})
        adapter = lora_files.describe(folder.name, "", folder)
        eng.adapters.read_now(adapter)
        request = Request(id=folder.name, text="Hello.", sampling=Sampling(max_steps=3))
        eng.add(with_adapter(request, adapter))
    assert all(finished(outcome).steps for outcome in run(eng).values()) and len(fingerprints) == 2


def test_the_fingerprint_is_that_of_the_content(tmp_path):
    assert lora_files.fingerprint(tmp_path) == lora_files.fingerprint(Path("nowhere")) == ""
