"""GPUs that the kernels are compiled for, and a stand-in for one on a host that has none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

KIB = 1024
MEMORY = 80 << 30  # bytes of each: enough for every setting

# Tests of kernels that run on a Hopper GPU, and in the interpreter.
needs_hopper = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """`shared`: bytes of shared memory that a block may have at most."""

    product: str
    capability: tuple[int, int]
    multiprocessors: int
    shared: int

    @property
    def target(self) -> str:
        return f"sm_{self.arch}"

    @property
    def arch(self) -> int:
        major, minor = self.capability
        return 10 * major + minor


# Shared memory is that of NVIDIA's tuning guides and of CUTLASS (arch.h). The number of multiprocessors decides how
# some launches are divided.
GPUS = {
    gpu.target: gpu
    for gpu in (
        Gpu("A100", (8, 0), 108, 163 * KIB),
        Gpu("A10", (8, 6), 72, 99 * KIB),
        Gpu("L4", (8, 9), 58, 99 * KIB),
        Gpu("H100", (9, 0), 132, 227 * KIB),
        Gpu("B200", (10, 0), 148, 227 * KIB),
        Gpu("RTX 5090", (12, 0), 170, 99 * KIB),
    )
}


@contextlib.contextmanager
def stand_in(gpu: Gpu) -> Iterator[None]:
    """Within the block PyTorch reports one such GPU. Tensors on it have shapes and types, and no values."""
    with mock.patch.multiple(torch.cuda, **_reports(gpu)), _bindings(), _CudaIsMeta():
        yield


@contextlib.contextmanager
def _bindings() -> Iterator[None]:
    """Within the block cuda-bindings seems to be installed."""
    absent = {"cuda", "cuda.bindings", "cuda.bindings.runtime"} - set(sys.modules)
    sys.modules.update(dict.fromkeys(absent, mock.MagicMock()))
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def _reports(gpu: Gpu) -> dict[str, Any]:
    """The functions of torch.cuda that an engine calls."""
    properties = SimpleNamespace(multi_processor_count=gpu.multiprocessors, total_memory=MEMORY)
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": gpu.capability,
        "get_device_name": gpu.product,
        "get_device_properties": properties,
        "mem_get_info": (MEMORY, MEMORY),
        "is_current_stream_capturing": False,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "stream": contextlib.nullcontext(),
        **dict.fromkeys(("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"), None),
    }
    functions: dict[str, Any] = {name: lambda *_, answer=answer: answer for name, answer in answers.items()}
    return functions | dict.fromkeys(("current_stream", "Stream", "Event", "MemPool"), mock.MagicMock)


class _CudaIsMeta(TorchFunctionMode):
    """Puts tensors on the meta device where a program asks for a GPU, and reports that they are on the GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.device:
            return func(*args, **kwargs)
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            device = func(*args)
            return torch.device("cuda", 0) if device.type == "meta" else device
        if func == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return args[0].is_meta
        if func is Tensor.pin_memory:
            return args[0]
        if func is Tensor.cpu and args[0].is_meta:
            return torch.zeros(args[0].shape, dtype=args[0].dtype)
        if func is Tensor.copy_ and args[1].is_meta and not args[0].is_meta:
            return args[0]
        kwargs = {name: _on_meta(value) for name, value in kwargs.items() if name != "pin_memory"}
        return func(*map(_on_meta, args), **kwargs)


def _on_meta(argument: Any) -> Any:
    names_gpu = isinstance(argument, torch.device | str) and str(argument).partition(":")[0] == "cuda"
    return torch.device("meta") if names_gpu else argument
