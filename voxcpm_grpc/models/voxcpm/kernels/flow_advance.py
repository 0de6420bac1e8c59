"""The Euler step of an evaluation and the input rows of the next one, in a single launch on Hopper.

It replaces both launches of `flow_step` between two evaluations, and has their dimensions. For the division of the work
see `flow_advance.cu`.
"""

from __future__ import annotations

import ctypes
import functools
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from voxcpm_grpc.kernels.cuda.compiler import (
    Function,
    Shape,
    compile_cuda,
    load_function,
    require_hopper,
    suppress_unavailable,
)
from voxcpm_grpc.kernels.rows.padded_rows import empty_rows

SOURCE, NAME = Path(__file__).with_name("flow_advance.cu"), "flow_advance"
HIDDEN, LATENTS, MAX_FRAMES = 1024, 64, 4
PARTS, THREADS = 8, 128  # blocks of a cluster, which serves a stream


@dataclass(frozen=True, slots=True)
class FlowWeights:
    """The weights around the layers of a diffusion transformer: norm [e], and the maps to and from latents."""

    norm: Tensor
    eps: float
    out: tuple[Tensor, Tensor]  # weight [D, e], bias [D]
    into: tuple[Tensor, Tensor]  # weight [e, D], bias [e]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.norm, *self.out, *self.into


class _Arguments(ctypes.Structure):
    """The parameter of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("made", "norm", "out_weight", "out_bias", "in_weight", "in_bias")),
        *((name, ctypes.c_void_p) for name in ("x", "sizes", "cfg", "mu", "time", "condition")),
        *((name, ctypes.c_void_p) for name in ("next", "rows", "squares")),
        *((name, ctypes.c_int) for name in ("streams", "i")),
        ("eps", ctypes.c_float),
    )


def flow_advance(
    made: Tensor,
    weights: FlowWeights,
    x: Tensor,
    sizes: Tensor,
    i: int,
    cfg: Tensor,
    mu: Tensor,
    time: Tensor,
    condition: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes x after `reference.flow_step` of the outputs `made`, and of that x what `flow_step.flow_rows` returns.

    x, sizes and cfg are float32, everything else is bfloat16.
    """
    streams, frames, _ = x.shape
    if not _is_written_for(weights, x, mu) or made.numel() != 2 * streams * frames * HIDDEN:
        raise ValueError(f"the kernel does not take {list(made.shape)} outputs for patches {list(x.shape)}")
    given = mu.shape[0], condition.shape, time.shape, cfg.shape
    if given != (streams, (streams, frames, HIDDEN), (HIDDEN,), (streams,)) or not 0 <= i < len(sizes):
        raise ValueError(f"the kernel does not take step {i} with mu, condition, time and cfg of sizes {given}")
    wide, halves = (x, sizes, cfg), (made, mu, time, condition, *weights.tensors)
    for tensors, dtype, alignment in (
        ((x,), torch.float32, 8),
        ((sizes, cfg), torch.float32, 4),
        (halves, torch.bfloat16, 16),
    ):
        if not all(t.dtype == dtype and t.is_contiguous() and t.data_ptr() % alignment == 0 for t in tensors):
            raise ValueError(f"the {dtype} tensors must be contiguous from a multiple of {alignment} bytes on")
    first = _first_tokens(mu)
    tokens = first + 2 * frames
    after = torch.empty_like(x)
    rows = empty_rows(made, tokens * 2 * streams, HIDDEN).view(tokens, 2 * streams, HIDDEN)
    squares = torch.empty(PARTS, 2 * streams * tokens, dtype=torch.float32, device=x.device)
    pointers = (made, *weights.tensors, *wide, mu, time, condition, after, rows, squares)
    _load(frames, first, x.device).launch(
        (PARTS, streams, 1), _Arguments(*(tensor.data_ptr() for tensor in pointers), streams, i, weights.eps)
    )
    return after, rows, squares


def serves(weights: FlowWeights, x: Tensor, mu: Tensor) -> bool:
    """True if `flow_advance` takes these weights for latents x [b, P, D] with mu [b, m, e]."""
    return _is_written_for(weights, x, mu) and _is_available(x.shape[1], _first_tokens(mu), x.device)


def compile_flow_advance(frames: int, first: int) -> Future[bytes]:
    """Start to compile for patches of `frames` frames, and `first` tokens before the patches. See `compile_cuda`."""
    return compile_cuda(SOURCE, {"FRAMES": frames, "FIRST": first})


def _is_written_for(weights: FlowWeights, x: Tensor, mu: Tensor) -> bool:
    shapes = [tuple(tensor.shape) for tensor in weights.tensors]
    sized = shapes == [(HIDDEN,), (LATENTS, HIDDEN), (LATENTS,), (HIDDEN, LATENTS), (HIDDEN,)]
    patches = x.shape[1] <= MAX_FRAMES and x.shape[2] == LATENTS
    return sized and patches and mu.shape[1:] in ((1, HIDDEN), (2, HIDDEN)) and weights.norm.dtype == torch.bfloat16


def _first_tokens(mu: Tensor) -> int:
    """The tokens of mu and time."""
    return 1 if mu.shape[1] == 1 else 3


@functools.cache
def _is_available(frames: int, first: int, device: torch.device) -> bool:
    """Load the kernel. False, with the reason in the log, if it cannot be used on this device."""
    with suppress_unavailable("the steps between evaluations are Triton's"):
        _load(frames, first, device)
        return True
    return False


@functools.cache
def _load(frames: int, first: int, device: torch.device) -> Function:
    require_hopper(device)
    shape = Shape(threads=THREADS, shared=0, cluster=(PARTS, 1, 1), early=True)
    return load_function(compile_flow_advance(frames, first), NAME, shape, device)
