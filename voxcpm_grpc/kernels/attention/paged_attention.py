"""Causal attention over a paged KV cache, for decode and prefill.

One program computes a tile of queries of one sequence and one KV head: some rows times the h / g query heads that share
the keys, so that a page is read once for all of them. Decode is a tile of one row. When there are too few tiles to fill
the device, several programs share the context and a second kernel adds up their parts.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import launch_next, multiprocessors, overlaps, wait

_TILE_ROWS = {torch.float32: 32}  # rows of queries times heads of one program; narrower types take 64
_SPLIT_POSITIONS = 128  # positions of a part, at least: adding up a shorter one costs more than it saves
_SEQUENCES = 128  # the constant that bounds the sequences is at least this, so that one compilation serves most counts
_MAX_SPLITS = 32  # the kernel that adds parts up has this width, so that one compilation serves every count


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    cu_seqlens: Tensor,
    context: Tensor,
    block_table: Tensor,
    max_rows: int,
    max_context: int,
    *,
    splits: int | None = None,
) -> Tensor:
    """Computes `reference.paged_attention`. Rows of q that belong to no sequence are left undefined.

    The launch depends on shapes, max_rows and max_context only, not on the content of tensors, so it can be captured in
    a CUDA graph. `splits` overrides the number of parts of a context.
    """
    rows, heads, size = q.shape
    page_size, groups = k_pages.shape[1:3]
    sequences = context.shape[0]
    repeat = heads // groups
    if k_pages.stride() != v_pages.stride() or q.stride()[1:] != (size, 1) or k_pages.stride()[2:] != (size, 1):
        raise ValueError(
            "the heads of q, k_pages and v_pages must be contiguous, and k_pages be laid out as v_pages is"
        )
    tile = max(16, min(_TILE_ROWS.get(q.dtype, 64), triton.next_power_of_2(max_rows * repeat)))
    tile = max(tile, triton.next_power_of_2(repeat))
    tiles = triton.cdiv(max_rows, tile // repeat)
    if splits is None:
        splits = count_splits(tiles * sequences * groups, max_context, q.device)
    out = torch.empty(rows, heads, size, dtype=q.dtype, device=q.device)
    part = out if splits == 1 else q.new_empty(rows, splits, heads, size, dtype=torch.float32)
    # The largest score and the sum of weights of each part are needed to add parts up.
    stats = q.new_empty(rows, splits, heads, 2, dtype=torch.float32) if splits > 1 else part
    overlap = overlaps(q.device)
    chained = {"launch_pdl": True} if overlap else {}
    rows_each = tile // repeat
    # All sequences together need no more tiles. A tile for every row of every sequence would mostly be empty.
    programs = sequences if tiles == 1 else rows // rows_each + sequences
    _paged_attention_kernel[(programs, groups, splits)](
        q,
        k_pages,
        v_pages,
        part,
        stats,
        cu_seqlens,
        context,
        block_table,
        size**-0.5 * 1.4426950408889634,  # scores are exponents of two: exp2 is one instruction
        q.stride(0),
        k_pages.stride(0),
        k_pages.stride(1),
        block_table.stride(0),
        splits,
        sequences,
        GROUPS=groups,
        REPEAT=repeat,
        SIZE=size,
        PAGE=page_size,
        TILE=tile,
        KEYS=32 if q.dtype == torch.float32 else 64,
        WIDTH=max(16, triton.next_power_of_2(size)),
        SEQUENCES=1 if tiles == 1 else max(_SEQUENCES, triton.next_power_of_2(sequences)),
        SPLIT=splits > 1,
        OVERLAP=overlap,
        **chained,
    )
    if splits > 1:
        add_parts(part, stats, out, splits)
    return out


def add_parts(part: Tensor, stats: Tensor, out: Tensor, splits: int) -> None:
    """Adds up the parts of a context into out [t, h, d].

    part [t, splits, h, d]; stats [t, splits, h, 2] holds the largest score and the sum of weights of each part. A sum
    of 0 marks a part that was not written.
    """
    rows, heads, size = out.shape
    overlap = overlaps(out.device)
    _add_parts_kernel[(rows, heads)](
        part,
        stats,
        out,
        splits,
        HEADS=heads,
        SIZE=size,
        WIDTH=triton.next_power_of_2(size),
        SPLITS=max(_MAX_SPLITS, triton.next_power_of_2(splits)),
        OVERLAP=overlap,
        **({"launch_pdl": True} if overlap else {}),
    )


def count_splits(programs: int, max_context: int, device: torch.device) -> int:
    """The number of parts of a context: enough for two programs on each multiprocessor, unless parts get too short."""
    wanted = 2 * multiprocessors(device) // programs
    return max(1, min(wanted, max_context // _SPLIT_POSITIONS, _MAX_SPLITS))


# Arguments that change from step to step are not specialized: a compilation would stall every stream.
@triton.jit(do_not_specialize=["cu_seqlens", "context", "block_table", "table_row", "splits", "sequences"])
def _paged_attention_kernel(
    q,
    k_pages,
    v_pages,
    out,
    stats,
    cu_seqlens,
    context,
    block_table,
    scale,
    q_row,
    page_stride,
    slot_stride,
    table_row,
    splits,
    sequences,
    GROUPS: tl.constexpr,
    REPEAT: tl.constexpr,
    SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    SEQUENCES: tl.constexpr,
    SPLIT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    wait(OVERLAP)
    ROWS: tl.constexpr = TILE // REPEAT
    sequence = tl.program_id(0)
    tile_row = 0
    if SEQUENCES > 1:
        each = tl.arange(0, SEQUENCES)
        starts = tl.load(cu_seqlens + each, mask=each < sequences, other=0)
        ends = tl.load(cu_seqlens + each + 1, mask=each < sequences, other=0)
        tiles = tl.cdiv(ends - starts, ROWS)
        sequence = tl.sum((tl.cumsum(tiles, 0) <= tl.program_id(0)).to(tl.int32), 0)
        if sequence >= sequences:
            return
        tile_row = (tl.program_id(0) - tl.sum(tl.where(each < sequence, tiles, 0), 0)) * ROWS
    group = tl.program_id(1)
    split = tl.program_id(2)
    first = tl.load(cu_seqlens + sequence)
    rows = tl.load(cu_seqlens + sequence + 1) - first
    length = tl.load(context + sequence)
    if tile_row >= rows:
        return

    # Entry i of the tile is query row tile_row + i // REPEAT of head group * REPEAT + i % REPEAT.
    entry = tl.arange(0, TILE)
    row = tile_row + entry // REPEAT
    head = group * REPEAT + entry % REPEAT
    valid = (entry < ROWS * REPEAT) & (row < rows)
    column = tl.arange(0, WIDTH)
    query = tl.load(
        q + (first + row).to(tl.int64)[:, None] * q_row + head[:, None] * SIZE + column[None, :],
        mask=valid[:, None] & (column < SIZE)[None, :],
        other=0.0,
    )
    last = length - rows + row  # each entry attends to this position last

    # This program computes a part of the context: whole blocks of keys, by the actual length of the context.
    end = tl.minimum(length, length - rows + tile_row + ROWS)
    begin = 0
    if SPLIT:
        span = tl.cdiv(tl.cdiv(end, splits), KEYS) * KEYS
        begin = split * span
        end = tl.minimum(end, begin + span)

    top = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    acc = tl.zeros([TILE, WIDTH], tl.float32)
    for start in tl.range(begin, end, KEYS, num_stages=2):  # pyright: ignore[reportGeneralTypeIssues]
        position = start + tl.arange(0, KEYS)
        inside = position < end
        page = tl.load(block_table + sequence * table_row + position // PAGE, mask=inside, other=0).to(tl.int64)
        slot = page * page_stride + (position % PAGE) * slot_stride + group * SIZE
        where = slot[:, None] + column[None, :]
        present = inside[:, None] & (column < SIZE)[None, :]  # slots past the context may hold NaN and are not read
        key = tl.load(k_pages + where, mask=present, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(inside[None, :] & (position[None, :] <= last[:, None]), score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)  # an entry may attend to no position of this part
        weight = tl.exp2(score - base[:, None])
        decay = tl.exp2(top - base)
        value = tl.load(v_pages + where, mask=present, other=0.0)
        total = total * decay + tl.sum(weight, 1)
        acc = acc * decay[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        top = new_top

    token = (first + row).to(tl.int64)
    if SPLIT:
        index = (token * splits + split) * (GROUPS * REPEAT) + head
        tl.store(stats + index * 2, top, mask=valid)
        tl.store(stats + index * 2 + 1, total, mask=valid)
        if begin < end:
            written = valid[:, None] & (column < SIZE)[None, :]
            tl.store(out + index[:, None] * SIZE + column[None, :], acc, mask=written)
    else:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(
            out + (token * (GROUPS * REPEAT) + head)[:, None] * SIZE + column[None, :],
            acc.to(out.dtype.element_ty),
            mask=valid[:, None] & (column < SIZE)[None, :],
        )


@triton.jit(do_not_specialize=["splits"])
def _add_parts_kernel(
    part,
    stats,
    out,
    splits,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    wait(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.arange(0, SPLITS)
    column = tl.arange(0, WIDTH)
    index = (token * splits + split) * HEADS + head
    top = tl.load(stats + index * 2, mask=split < splits, other=float("-inf"))
    total = tl.load(stats + index * 2 + 1, mask=split < splits, other=0.0)
    best = tl.max(top, 0)
    factor = tl.exp2(top - tl.where(best == float("-inf"), 0.0, best))
    acc = tl.load(
        part + index[:, None] * SIZE + column[None, :],
        mask=(total > 0.0)[:, None] & (column < SIZE)[None, :],  # an empty part was not written
        other=0.0,
    )
    whole = tl.sum(total * factor, 0)
    value = tl.sum(acc * factor[:, None], 0) / tl.where(whole == 0.0, 1.0, whole)
    tl.store(out + (token * HEADS + head) * SIZE + column, value.to(out.dtype.element_ty), mask=column < SIZE)
