"""Calls into CUDA by NVIDIA's own bindings: cuda-bindings, which PyTorch's wheels with CUDA for Linux require."""

from __future__ import annotations

from typing import Any


class CudaError(RuntimeError):
    """CUDA refused a call; the message is its status."""


def checked(result: tuple[Any, ...], *, many: bool = False) -> Any:
    """What a call into CUDA returns beside its status: the first value, or all."""
    status, *values = result
    if int(status) != 0:
        raise CudaError(status.name)
    return values if many else values[0] if values else None
