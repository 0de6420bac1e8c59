"""Attention inside short sequences with norm and rotation on Hopper, in registers. See `cuda/patch_attention.cu`."""

from __future__ import annotations

import ctypes
import functools
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from voxcpm_grpc.kernels.cuda import compiler
from voxcpm_grpc.kernels.cuda.compiler import (
    SOURCES,
    Function,
    Shape,
    compile_cuda,
    load_function,
    suppress_unavailable,
)
from voxcpm_grpc.kernels.rows.padded_rows import empty_rows

SOURCE, NAME = SOURCES / "patch_attention.cu", "patch_attention"
SIZE = 128  # elements of a head
MAX_TOKENS = 16
LINE = 256  # values that a warp reads at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The division of a launch: blocks of `warps`, each with `heads` query heads of one KV head."""

    heads: int
    warps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes that a kernel is compiled for. `inputs` is the length of the rows of the norm, 0 without a norm."""

    tokens: int
    heads: int
    groups: int
    inputs: int
    rotate: bool

    def divided_by(self, cut: Cut) -> bool:
        return self.heads // self.groups % cut.heads == 0 and self.heads % (cut.heads * cut.warps) == 0


# Each entry has the fewest sequences and a cut, measured on one H200 on whole stacks in CUDA graphs. A multiprocessor
# runs one block of eight warps at a time.
CUTS = (
    (67, Cut(heads=2, warps=8)),
    (17, Cut(heads=1, warps=8)),
    (1, Cut(heads=1, warps=4)),
)


class _Arguments(ctypes.Structure):
    """The parameter of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "cos", "sin", "rows", "out")),
        *((name, ctypes.c_uint) for name in ("q_row", "kv_row")),
        *((name, ctypes.c_int) for name in ("begin", "end")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
    )


def patch_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    cut: Cut,
    *,
    rows: Tensor | None = None,
    eps: float = 0.0,
    wanted: range | None = None,
) -> Tensor:
    """Computes `reference.local_attention` for bfloat16 q, k, v and rows, and float32 cos and sin.

    q, k and v may be slices of one projection.
    """
    sizes = _sizes(q, k, v, cos, rows)
    if sizes is None or not sizes.divided_by(cut):
        raise ValueError(f"{cut} does not serve q, k and v of {q.shape}, {k.shape} and {v.shape}, {q.dtype}")
    tokens, sequences, heads, _ = q.shape
    if wanted is None:
        wanted = range(tokens)
    out = empty_rows(q, len(wanted) * sequences, heads * SIZE).view(len(wanted), sequences, heads, SIZE)
    _load(sizes, cut, q.device).launch(
        (sequences, heads // (cut.heads * cut.warps), 1),
        _Arguments(
            q=q.data_ptr(),
            k=k.data_ptr(),
            v=v.data_ptr(),
            cos=0 if cos is None else cos.data_ptr(),
            sin=0 if sin is None else sin.data_ptr(),
            rows=0 if rows is None else rows.data_ptr(),
            out=out.data_ptr(),
            q_row=q.stride(1),
            kv_row=k.stride(1),
            begin=wanted.start,
            end=wanted.stop,
            eps=eps,
            scale=SIZE**-0.5 * 1.4426950408889634,  # scores are exponents of two: ex2 is one instruction
        ),
    )
    return out


def find_cut(q: Tensor, k: Tensor, v: Tensor, cos: Tensor | None, rows: Tensor | None) -> Cut | None:
    """The cut for a call of `patch_attention` with these arguments. None if the kernel does not serve it."""
    sizes = _sizes(q, k, v, cos, rows)
    if sizes is None or q.device.type != "cuda":
        return None
    cut = choose_cut(q.shape[1], sizes)
    return cut if cut is not None and _load_all(sizes, q.device) else None


def choose_cut(sequences: int, sizes: Sizes) -> Cut | None:
    """The cut for so many sequences; None if none divides the heads."""
    return next((cut for fewest, cut in CUTS if sequences >= fewest and sizes.divided_by(cut)), None)


def compile_patch_attention(sizes: Sizes, cut: Cut) -> Future[bytes]:
    """Start to compile a kernel. See `compile_cuda`."""
    constants = {
        "TOKENS": sizes.tokens,
        "REPEAT": sizes.heads // sizes.groups,
        "COUNT": sizes.heads,
        "INPUTS": sizes.inputs,
        "ROTATE": int(sizes.rotate),
        "HEADS": cut.heads,
        "WARPS": cut.warps,
    }
    return compile_cuda(SOURCE, constants)


def _sizes(q: Tensor, k: Tensor, v: Tensor, cos: Tensor | None, rows: Tensor | None) -> Sizes | None:
    """The sizes of a call; None if the kernel does not take it."""
    tokens, sequences, heads, size = q.shape
    groups, inputs = k.shape[2], 0 if rows is None else rows.shape[1]
    if size != SIZE or tokens > MAX_TOKENS or heads % groups or inputs % LINE:
        return None
    for x in (q, k, v):
        row = x.stride(1)
        spaced = x.stride() == (sequences * row, row, size, 1)
        if x.dtype != torch.bfloat16 or not spaced or row % 8 or x.data_ptr() % 16:
            return None
    if k.stride(1) != v.stride(1) or (rows is not None and not (rows.is_contiguous() and rows.dtype == torch.bfloat16)):
        return None
    if cos is not None and not (cos.is_contiguous() and cos.dtype == torch.float32):
        return None
    return Sizes(tokens=tokens, heads=heads, groups=groups, inputs=inputs, rotate=cos is not None)


@functools.cache
def _load_all(sizes: Sizes, device: torch.device) -> bool:
    """Load the kernels of all cuts. False, with the reason in the log, if they cannot be used on this device."""
    cuts = [cut for _, cut in CUTS if sizes.divided_by(cut)]
    with suppress_unavailable("attention inside patches is Triton's"):
        compiler.require_hopper(device)
        for cut in cuts:
            compile_patch_attention(sizes, cut)
        for cut in cuts:
            _load(sizes, cut, device)
        return True
    return False


@functools.cache
def _load(sizes: Sizes, cut: Cut, device: torch.device) -> Function:
    shape = Shape(threads=32 * cut.warps, shared=0, early=True)
    return load_function(compile_patch_attention(sizes, cut), NAME, shape, device)
