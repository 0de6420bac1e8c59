"""Checks the status of CUDA calls made through cuda-bindings, a dependency of PyTorch's CUDA wheels for Linux."""

from __future__ import annotations

from typing import Any


class CudaError(RuntimeError):
    """A CUDA call failed. The message is its status."""


def checked(result: tuple[Any, ...], *, many: bool = False) -> Any:
    """The first value that a CUDA call returns beside its status, or all values. Raises CudaError."""
    status, *values = result
    if int(status) != 0:
        raise CudaError(status.name)
    return values if many else values[0] if values else None
