"""Calls into CUDA by NVIDIA's own bindings, the package cuda-bindings, which PyTorch brings where it brings CUDA."""

from __future__ import annotations

from typing import Any


class CudaError(RuntimeError):
    """CUDA refused a call; says with which status."""


def checked(result: tuple[Any, ...], *, many: bool = False) -> Any:
    """What a call into CUDA returns beside its status: the first value, or all."""
    status, *values = result
    if int(status) != 0:
        raise CudaError(repr(status))
    return values if many else values[0] if values else None
