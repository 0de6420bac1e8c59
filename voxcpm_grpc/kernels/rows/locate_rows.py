"""Finds the positions, pages and contexts of the rows of a step, in one launch."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def locate_rows(
    slot: Tensor, position: Tensor, block_table: Tensor, page_size: int, pages: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Computes `reference.locate_rows`."""
    if not slot.is_contiguous():
        raise ValueError("the slots must be contiguous")
    b = len(slot)
    at, write = (torch.empty(b, dtype=torch.int64, device=slot.device) for _ in range(2))
    context, starts = (torch.empty(n, dtype=torch.int32, device=slot.device) for n in (b, b + 1))
    table = torch.empty(b, pages, dtype=torch.int32, device=slot.device)
    block = triton.next_power_of_2(pages)
    strides = position.stride(0), block_table.stride(0)
    _locate_rows_kernel[(b,)](
        slot, position, block_table, at, context, table, write, starts, *strides, page_size, pages, BLOCK=block
    )
    return at, context, table, write, starts


# `stride` is that of the numbers of slots, which share a table. The alignment of views and the sizes of tables are not
# specialized: a compilation would stall every stream.
@triton.jit(do_not_specialize=["slot", "stride", "row", "page_size", "pages"])
def _locate_rows_kernel(
    slot, position, block_table, at, context, table, write, starts, stride, row, page_size, pages, BLOCK: tl.constexpr
):
    stream = tl.program_id(0)
    if stream == 0:
        tl.store(starts, 0)
    tl.store(starts + stream + 1, stream + 1)
    own = tl.load(slot + stream)
    where = tl.load(position + own * stride)
    page = tl.load(block_table + own * row + where // page_size).to(tl.int64)
    tl.store(at + stream, where)
    tl.store(context + stream, (where + 1).to(tl.int32))
    tl.store(write + stream, page * page_size + where % page_size)
    entry = tl.arange(0, BLOCK)
    inside = entry < pages
    tl.store(table + stream * pages + entry, tl.load(block_table + own * row + entry, mask=inside), mask=inside)
