"""Attention of one new row of each sequence over its paged context on Hopper. See `cuda/context_attention.cu`."""

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

SOURCE, NAME = SOURCES / "context_attention.cu", "context_attention"
SIZE = 128  # elements of a head
REPEAT = 8  # a KV head has so many query heads
TILE = 16  # positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The division of a launch: `splits` blocks of a cluster, with `warps` each, divide the context of a KV head.

    A warp requests `ahead` tiles before it uses the first one. `resident` blocks fit on a multiprocessor.
    """

    warps: int
    splits: int = 1
    ahead: int = 1
    resident: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes that a kernel is compiled for. `page` is the number of positions of a page of the cache."""

    groups: int
    page: int
    rotate: bool


# Each entry has the fewest sequences and a cut, measured on one H200 on whole stacks in CUDA graphs. The context of a
# lone sequence needs more blocks than a cluster has.
CUTS = (
    (16, Cut(warps=8, ahead=2)),
    (2, Cut(warps=4, splits=4, resident=2)),
)


class _Arguments(ctypes.Structure):
    """The parameter of the kernel."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("q", "k", "v", "cos", "sin", "keys", "values", "out", "context", "table", "write")
        ),
        *((name, ctypes.c_uint) for name in ("q_row", "k_row", "v_row", "table_row")),
        ("scale", ctypes.c_float),
    )


def context_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    k_pages: Tensor,
    v_pages: Tensor,
    context: Tensor,
    block_table: Tensor,
    write: Tensor,
    cut: Cut,
    *,
    first: bool = True,
) -> Tensor:
    """Computes `reference.decode_attention` in bfloat16, for heads of SIZE and REPEAT query heads of each KV head.

    q, k and v may be slices of one projection. `first` has the meaning that it has in
    `decode_attention.decode_attention`.
    """
    sequences, heads, _ = q.shape
    sizes = _sizes(q, k, v, cos, k_pages, v_pages)
    if sizes is None:
        raise ValueError(f"the kernel does not serve q of {q.shape}, {q.dtype}, and pages of {k_pages.shape}")
    out = torch.empty(sequences, heads, SIZE, dtype=q.dtype, device=q.device)
    _load(sizes, cut, not first, q.device).launch(
        (cut.splits, sequences * sizes.groups, 1),
        _Arguments(
            q=q.data_ptr(),
            k=k.data_ptr(),
            v=v.data_ptr(),
            cos=0 if cos is None else cos.data_ptr(),
            sin=0 if sin is None else sin.data_ptr(),
            keys=k_pages.data_ptr(),
            values=v_pages.data_ptr(),
            out=out.data_ptr(),
            context=context.data_ptr(),
            table=block_table.data_ptr(),
            write=write.data_ptr(),
            q_row=q.stride(0),
            k_row=k.stride(0),
            v_row=v.stride(0),
            table_row=block_table.stride(0),
            scale=SIZE**-0.5 * 1.4426950408889634,  # scores are exponents of two: ex2 is one instruction
        ),
    )
    return out


def find_cut(q: Tensor, k: Tensor, v: Tensor, cos: Tensor | None, k_pages: Tensor, v_pages: Tensor) -> Cut | None:
    """The cut for a call of `context_attention` with these arguments. None if the kernel does not serve it."""
    sizes, cut = _sizes(q, k, v, cos, k_pages, v_pages), choose_cut(len(q))
    if sizes is None or cut is None or q.device.type != "cuda":
        return None
    return cut if _load_all(sizes, q.device) else None


def choose_cut(sequences: int) -> Cut | None:
    """The cut for so many sequences; None if Triton's kernel is faster."""
    return next((cut for fewest, cut in CUTS if sequences >= fewest), None)


def compile_context_attention(sizes: Sizes, cut: Cut) -> Future[bytes]:
    """Start to compile a kernel. See `compile_cuda`."""
    constants = {
        "GROUPS": sizes.groups,
        "PAGE": sizes.page,
        "ROTATE": int(sizes.rotate),
        "WARPS": cut.warps,
        "SPLITS": cut.splits,
        "AHEAD": cut.ahead,
        "RESIDENT": cut.resident,
    }
    return compile_cuda(SOURCE, constants)


def _sizes(q: Tensor, k: Tensor, v: Tensor, cos: Tensor | None, k_pages: Tensor, v_pages: Tensor) -> Sizes | None:
    """The sizes of a call; None if the kernel does not take it."""
    page, groups, size = k_pages.shape[1:]
    if size != SIZE or q.shape[1] != REPEAT * groups or page % TILE:
        return None
    for x in (q, k, v):
        if x.stride()[1:] != (SIZE, 1) or x.stride(0) % 8:
            return None
    for x in (q, k, v, k_pages, v_pages):
        if x.dtype != torch.bfloat16 or x.data_ptr() % 16:
            return None
    if not (k_pages.is_contiguous() and v_pages.is_contiguous()):
        return None
    if cos is not None and not (cos.is_contiguous() and cos.dtype == torch.float32):
        return None
    return Sizes(groups=groups, page=page, rotate=cos is not None)


@functools.cache
def _load_all(sizes: Sizes, device: torch.device) -> bool:
    """Load the kernels of all cuts. False, with the reason in the log, if they cannot be used on this device."""
    cuts = [cut for _, cut in CUTS]
    with suppress_unavailable("attention over contexts is Triton's"):
        compiler.require_hopper(device)
        for cut in cuts:
            compile_context_attention(sizes, cut)
        for cut in cuts:
            _load(sizes, cut, True, device)
            _load(sizes, cut, False, device)
        return True
    return False


@functools.cache
def _load(sizes: Sizes, cut: Cut, early: bool, device: torch.device) -> Function:
    shape = Shape(threads=32 * cut.warps, shared=0, cluster=(cut.splits, 1, 1), early=early)
    return load_function(compile_context_attention(sizes, cut), NAME, shape, device)
