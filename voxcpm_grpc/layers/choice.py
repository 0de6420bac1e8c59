"""Chooses the plain or the fast implementation of attention and of a transformer's layers, for a device.

Triton and flash-attn are not part of every installation, so a fast implementation is imported inside the function that
chooses it.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

from voxcpm_grpc.attention import Attention
from voxcpm_grpc.attention.reference import ReferenceAttention
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.layers.ops import Ops, TorchOps
from voxcpm_grpc.layers.packed import PackedOps, packing_serves


def choose_attention(name: str, device: torch.device) -> Attention:
    """The attention backend called `name`: reference, triton or flash.

    "auto" is the reference on a CPU and on a GPU without bfloat16; on other GPUs it is flash-attn if that is installed,
    else Triton. Raises StartupError.
    """
    if device.type == "cpu" and name not in ("auto", "reference"):
        raise StartupError(f"engine.attention {name} needs a GPU; on a CPU it may be auto or reference")
    if name == "auto" and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        name = "flash" if find_spec("flash_attn") else "triton"
    try:
        match name:
            case "auto" | "reference":
                return ReferenceAttention()
            case "triton":
                from voxcpm_grpc.attention.paged_triton import TritonAttention

                return TritonAttention()
            case "flash":
                from voxcpm_grpc.attention.flash import FlashAttention

                return FlashAttention()
            case _:
                raise StartupError(f"engine.attention is {name!r}; it may be auto, reference, triton or flash")
    except ImportError as error:
        raise StartupError(
            f"engine.attention {name} cannot be loaded ({error}); install the missing package, or use auto"
        ) from error


def choose_ops(fused: bool, device: torch.device, *, packed: bool = False, folds: bool = True) -> Ops:
    """The operations of a transformer layer besides attention: fused kernels, or plain PyTorch.

    With `packed`, the products of plain operations on a CPU are oneDNN's, if it has them. For `folds` see `TritonOps`.
    """
    if not fused:
        return PackedOps() if packed and device.type == "cpu" and packing_serves() else TorchOps()
    from voxcpm_grpc.layers.fused import TritonOps

    # The tiles need the shared memory and the matrix unit of Hopper.
    return TritonOps(device, tiled=is_hopper(device), folds=folds)


def is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9
