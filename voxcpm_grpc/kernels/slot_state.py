"""Kernels that read the state of all slots for a step, or store its results there, in one launch each.

Dimensions: b streams of a step, n slots, P frames of a patch, D latent channels, c hidden size, p pages of a sequence.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor


def locate_rows(
    slot: Tensor, position: Tensor, block_table: Tensor, page_size: int, pages: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes `reference.locate_rows`."""
    _require_contiguous(slot)
    b = len(slot)
    at, write = (torch.empty(b, dtype=torch.int64, device=slot.device) for _ in range(2))
    context = torch.empty(b, dtype=torch.int32, device=slot.device)
    table = torch.empty(b, pages, dtype=torch.int32, device=slot.device)
    block = triton.next_power_of_2(pages)
    strides = position.stride(0), block_table.stride(0)
    _locate_rows_kernel[(b,)](
        slot, position, block_table, at, context, table, write, *strides, page_size, pages, BLOCK=block
    )
    return at, context, table, write


def store_patch(
    latents: Tensor,
    stop_logits: Tensor,
    slot: Tensor,
    patches: Tensor,
    condition: Tensor,
    stop: Tensor,
    finite: Tensor,
    history: Tensor,
    limit: float,
) -> None:
    """Computes `reference.store_patch`."""
    _require_contiguous(latents, stop_logits, slot, condition, stop, finite, history)
    count = latents[0].numel()
    flags, sizes = (stop.view(torch.int8), finite.view(torch.int8)), (patches.stride(0), history.shape[1])
    block = triton.next_power_of_2(count)
    _store_patch_kernel[(len(slot),)](
        latents, stop_logits, slot, patches, condition, *flags, history, limit, *sizes, COUNT=count, BLOCK=block
    )


def store_hidden(slot: Tensor, hidden: Sequence[Tensor], kept: Sequence[Tensor], counters: Sequence[Tensor]) -> None:
    """Computes `reference.store_hidden`."""
    _require_contiguous(slot, *hidden, *kept)
    stride, *others = (counter.stride(0) for counter in counters)
    if any(other != stride for other in others):
        raise ValueError("all counters must have the same stride")
    count = hidden[0].shape[1]
    block = triton.next_power_of_2(count)
    _store_hidden_kernel[(len(slot),)](slot, *hidden, *kept, *counters, stride, COUNT=count, BLOCK=block)


def _require_contiguous(*tensors: Tensor) -> None:
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("all tensors but the numbers of slots must be contiguous")


# `stride` is that of the numbers of slots, which share a table. The alignment of views and the sizes of tables are not
# specialized: a compilation would stall every stream.
@triton.jit(do_not_specialize=["slot", "stride", "row", "page_size", "pages"])
def _locate_rows_kernel(
    slot, position, block_table, at, context, table, write, stride, row, page_size, pages, BLOCK: tl.constexpr
):
    stream = tl.program_id(0)
    own = tl.load(slot + stream)
    where = tl.load(position + own * stride)
    page = tl.load(block_table + own * row + where // page_size).to(tl.int64)
    tl.store(at + stream, where)
    tl.store(context + stream, (where + 1).to(tl.int32))
    tl.store(write + stream, page * page_size + where % page_size)
    entry = tl.arange(0, BLOCK)
    inside = entry < pages
    tl.store(table + stream * pages + entry, tl.load(block_table + own * row + entry, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["slot", "stride", "entries"])
def _store_patch_kernel(
    latents,
    stop_logits,
    slot,
    patches,
    condition,
    stop,
    finite,
    history,
    limit,
    stride,
    entries,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    stream = tl.program_id(0)
    own = tl.load(slot + stream)
    element = tl.arange(0, BLOCK)
    inside = element < COUNT
    x = tl.load(latents + stream * COUNT + element, mask=inside, other=0.0)
    good = tl.min((tl.abs(x) < limit).to(tl.int32), 0)
    patch = tl.where(good != 0, x, 0.0)
    tl.store(condition + own * COUNT + element, patch.to(condition.dtype.element_ty), mask=inside)
    continues, ends = tl.load(stop_logits + 2 * stream), tl.load(stop_logits + 2 * stream + 1)
    tl.store(stop + own, (ends > continues).to(tl.int8))
    tl.store(finite + own, good.to(tl.int8))
    entry = tl.minimum(tl.load(patches + own * stride), entries - 1)
    tl.store(history + (own * entries + entry) * COUNT + element, patch.to(history.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["slot", "stride"])
def _store_hidden_kernel(
    slot,
    semantic,
    acoustic,
    semantic_kept,
    acoustic_kept,
    position,
    patches,
    step,
    stride,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    stream = tl.program_id(0)
    own = tl.load(slot + stream)
    channel = tl.arange(0, BLOCK)
    inside = channel < COUNT
    first = tl.load(semantic + stream * COUNT + channel, mask=inside)
    second = tl.load(acoustic + stream * COUNT + channel, mask=inside)
    tl.store(semantic_kept + own * COUNT + channel, first, mask=inside)
    tl.store(acoustic_kept + own * COUNT + channel, second, mask=inside)
    tl.store(position + own * stride, tl.load(position + own * stride) + 1)
    tl.store(patches + own * stride, tl.load(patches + own * stride) + 1)
    tl.store(step + own * stride, tl.load(step + own * stride) + 1)
