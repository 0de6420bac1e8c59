"""The pages of a KV cache on a GPU that several models share. The sizes of the GPU are made up."""

from __future__ import annotations

import pytest
import torch

from voxcpm_grpc.engine import kv_cache
from voxcpm_grpc.engine.kv_cache import count_pages
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models.base import KVLayout
from voxcpm_grpc.settings.engine import EngineSettings

GIB = 1 << 30
LAYOUT = KVLayout(layers=28, heads=2, head_dim=128, dtype=torch.bfloat16)
PAGE = LAYOUT.bytes_per_position * 16


@pytest.fixture
def gpu(monkeypatch):
    """Sets the memory of the GPU, in GiB: what is free of 80, and what this process has reserved."""

    def set_memory(free: float, reserved: float) -> None:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free * GIB), 80 * GIB))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: int(reserved * GIB))

    return set_memory


def pages(part: float, max_len: int = 32768) -> int:
    settings = EngineSettings(gpu_memory_part=part, gpu_memory_utilization=0.8)
    return count_pages(LAYOUT, settings, torch.device("cuda", 0), slots=256, max_len=max_len, working=2 * GIB)


def test_a_whole_gpu_counts_the_memory_of_everyone(gpu):
    gpu(free=60, reserved=6)
    assert pages(1.0) == (64 * GIB - 20 * GIB - 2 * GIB) // PAGE


def test_a_part_does_not_depend_on_what_another_engine_has_taken(gpu):
    expected = (32 * GIB - 6 * GIB - kv_cache.CONTEXT - 2 * GIB) // PAGE
    for free in (70, 45, 26):  # before, while and after the other engine loads
        gpu(free=free, reserved=6)
        assert pages(0.5) == expected


def test_a_part_takes_no_more_than_what_is_free(gpu):
    gpu(free=10, reserved=6)
    assert pages(0.5) == 8 * GIB // PAGE


def test_a_part_that_is_too_small_is_refused_with_the_calculation(gpu):
    gpu(free=60, reserved=6)
    with pytest.raises(StartupError, match=r"80% x 0\.1 of 80\.0 GiB, less 6\.6 GiB in use and 2\.0 GiB"):
        pages(0.1)
