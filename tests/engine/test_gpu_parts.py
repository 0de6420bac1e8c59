"""The pages of a KV cache on a GPU that several models share. The sizes of the GPU are made up."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from voxcpm_grpc.engine.device import kv_cache
from voxcpm_grpc.engine.device.kv_cache import count_pages
from voxcpm_grpc.engine.start.gpu_memory import fitting
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
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
        properties = SimpleNamespace(uuid="3f2a-11", total_memory=80 * GIB)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    return set_memory


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """Sets what nvidia-smi answers."""

    def answer(*lines: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in lines)]))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return answer


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


def test_an_engine_that_does_not_fit_beside_another_program_names_the_gpu_and_the_program(gpu, driver):
    gpu(free=4, reserved=6)
    driver(
        "GPU-3f2a-11, 77, /usr/bin/train,er, 71000",
        f"GPU-3f2a-11, {os.getpid()}, python, 6600",
        "GPU-ffff-99, 78, elsewhere, 70000",
        "GPU-3f2a-11, 79, hidden, [N/A]",
    )
    program = r"other programs hold 69\.4 GiB of it: /usr/bin/train,er \(process 77, 69\.3 GiB\); stop them, or leave"
    with pytest.raises(StartupError, match=rf"On GPU 0 \(NVIDIA H100\), {program} this GPU out with --devices"):
        pages(1.0)
    short = pytest.raises(
        StartupError, match=rf"GPU 0 \(NVIDIA H100\): .* 5\.0 GiB, and 4\.0 of 80\.0 GiB are free; {program}"
    )
    with short, fitting(torch.device("cuda", 0), 5 * GIB):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")


def test_an_engine_that_is_alone_on_its_gpu_blames_no_program(gpu, driver):
    gpu(free=73, reserved=6)
    driver()
    short = pytest.raises(StartupError, match=r"a GPU with more memory, or lower engine\.max_slots")
    with short, fitting(torch.device("cuda", 0), 90 * GIB):
        raise RuntimeError("CUDA error: out of memory")


def test_other_errors_stay_as_they_are():
    with pytest.raises(RuntimeError, match="shape"), fitting(torch.device("cuda", 0), 1):
        raise RuntimeError("shape")
    with pytest.raises(RuntimeError, match="out of memory"), fitting(torch.device("cpu"), 1):
        raise RuntimeError("out of memory")
