"""Kernels that compute a whole part of the model for a single stream in one launch.

They are the Euler loop, with all layers of all evaluations of the diffusion transformer, and the encoder of patches.
Each serves one shape, that of VoxCPM2's released model, on GPUs of compute capability 9.0, and is compiled at its first
use. `KernelUnavailable` gives the reason if it cannot be used.

Dimensions: e hidden size, P frames of a patch, D latent channels, n evaluations.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable
from voxcpm_grpc.models.voxcpm.kernels.packed_stack import (
    BLOCKS,
    HIDDEN,
    LayerWeights,
    Model,
    PackedStack,
    Packets,
    load_kernel,
    rotation_table,
)

# frames.cuh and flow.cu have the same constants, and are written for these sizes. The tokens are those of both
# transformers.
PATCH, LATENT, FLOW_TOKENS, ENCODER_TOKENS = 4, 64, 11, 5
VELOCITY = 16  # the projection to velocities has so many slots
FOLDER = Path(__file__).parent
FLOW, ENCODER = (FOLDER / "flow.cu", "flow"), (FOLDER / "encoder.cu", "encode")  # each kernel has a source and a name
FLOW_POINTERS = (
    *("noise", "mu", "condition", "cfg", "time", "size"),
    *("in_weight", "in_bias", "condition_weight", "condition_bias", "out_bias", "rotation", "out"),
)
ENCODER_POINTERS = ("patch", "token", "in_weight", "in_bias", "norm", "rotation", "out")


class _FlowArguments(ctypes.Structure):
    """The parameter of the kernel, as flow.cu declares it."""

    _fields_ = (("model", Model), ("packets", Packets), *((name, ctypes.c_void_p) for name in FLOW_POINTERS))


class _EncoderArguments(ctypes.Structure):
    """The parameter of the kernel, as encoder.cu declares it."""

    _fields_ = (("model", Model), ("packets", Packets), *((name, ctypes.c_void_p) for name in ENCODER_POINTERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowWeights:
    """The weights of the loop. `models.voxcpm.persistent.flow_weights` takes them from a model."""

    layers: Sequence[LayerWeights]
    eps: float
    in_proj: tuple[Tensor, Tensor]  # weight [e, D], bias [e]
    cond_proj: tuple[Tensor, Tensor]
    out_proj: tuple[Tensor, Tensor]  # weight [D, e], including that of the final norm, and bias [D]
    cos: Tensor  # float32 [11, HEAD / 2]
    sin: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderWeights:
    """The weights of the encoder. `models.voxcpm.persistent.encoder_weights` takes them from a model."""

    layers: Sequence[LayerWeights]
    eps: float
    token: Tensor  # [e], the special token
    in_proj: tuple[Tensor, Tensor]  # weight [e, D], bias [e]
    norm: Tensor  # [e]
    cos: Tensor  # float32 [5, HEAD / 2]
    sin: Tensor


class PersistentFlow:
    """The loop with one set of weights, of which it copies those of the layers.

    Its calls share memory, so they must not run at the same time.
    """

    def __init__(self, weights: FlowWeights) -> None:
        """Raises KernelUnavailable if the device, the dtype or the compiler does not meet the kernel's needs."""
        out = weights.out_proj[0]
        require_weights(out)
        self._kernel = load_kernel(*FLOW, out.device)
        self._stack = PackedStack(weights.layers, weights.eps, out.device, tail=out)
        self._fixed = {
            "in_weight": weights.in_proj[0].contiguous(),
            "in_bias": weights.in_proj[1],
            "condition_weight": weights.cond_proj[0].contiguous(),
            "condition_bias": weights.cond_proj[1],
            "out_bias": weights.out_proj[1],
            "rotation": rotation_table(weights.cos, weights.sin),
        }

    def __call__(self, noise: Tensor, mu: Tensor, condition: Tensor, cfg: Tensor, time: Tensor, size: Tensor) -> Tensor:
        """The new patch, float32 [1, P, D].

        noise float32 [1, P, D]; mu bfloat16 [1, 2, e]; condition bfloat16 [1, P, D], the previous patch; cfg float32
        [1]; time bfloat16 [n, e] and size float32 [n], the time token and the step size of each evaluation.
        """
        n = len(size)
        require_inputs(torch.float32, noise=(noise, (1, PATCH, LATENT)), cfg=(cfg, (1,)), size=(size, (n,)))
        patch = (1, PATCH, LATENT)
        require_inputs(torch.bfloat16, mu=(mu, (1, 2, HIDDEN)), condition=(condition, patch), time=(time, (n, HIDDEN)))
        out = torch.empty_like(noise)
        given = {"noise": noise, "mu": mu, "condition": condition, "cfg": cfg, "time": time, "size": size, "out": out}
        pointers = {name: tensor.data_ptr() for name, tensor in (self._fixed | given).items()}
        model, packets = self._stack.model(n, FLOW_TOKENS), self._stack.packets()
        self._kernel.launch((BLOCKS, 1, 1), _FlowArguments(model=model, packets=packets, **pointers))
        return out


class PersistentEncoder:
    """The encoder with one set of weights, of which it copies those of the layers.

    Its calls share memory, so they must not run at the same time.
    """

    def __init__(self, weights: EncoderWeights) -> None:
        """Raises KernelUnavailable if the device, the dtype or the compiler does not meet the kernel's needs."""
        require_weights(weights.token)
        device = weights.token.device
        self._kernel = load_kernel(*ENCODER, device)
        self._stack = PackedStack(weights.layers, weights.eps, device)
        self._fixed = {
            "token": weights.token.contiguous(),
            "in_weight": weights.in_proj[0].contiguous(),
            "in_bias": weights.in_proj[1],
            "norm": weights.norm,
            "rotation": rotation_table(weights.cos, weights.sin),
        }

    def __call__(self, patch: Tensor) -> Tensor:
        """The vector of a patch, bfloat16 [1, e] of bfloat16 [1, P, D]."""
        require_inputs(torch.bfloat16, patch=(patch, (1, PATCH, LATENT)))
        out = patch.new_empty(1, HIDDEN)
        pointers = {name: tensor.data_ptr() for name, tensor in (self._fixed | {"patch": patch, "out": out}).items()}
        model, packets = self._stack.model(1, ENCODER_TOKENS), self._stack.packets()
        self._kernel.launch((BLOCKS, 1, 1), _EncoderArguments(model=model, packets=packets, **pointers))
        return out


def require_weights(weight: Tensor) -> None:
    if weight.dtype != torch.bfloat16 or weight.device.type != "cuda":
        raise KernelUnavailable(f"the kernel needs bfloat16 weights on a GPU, not {weight.dtype} on {weight.device}")


def require_inputs(dtype: torch.dtype, **inputs: tuple[Tensor, Iterable[int]]) -> None:
    """Raise ValueError if a tensor does not have this dtype and its shape, or is not contiguous."""
    for name, (tensor, shape) in inputs.items():
        if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}, not contiguous {dtype} {list(shape)}")
