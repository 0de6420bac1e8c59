"""Attention of one new row of each sequence over its paged context, with all that precedes it, in one launch.

The norms of heads, if the model has any, the rotation and the KV write precede it.

Every key of a context except the newest was written by an earlier step, so a program loads its first block of keys
before its queries exist (see `launch`). Contexts are read in parts. From 8 sequences on, the program that completes the
last part of a context adds the parts up. With fewer, each has so many parts that a second launch adds them up sooner.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.attention.paged_attention import add_parts, count_splits
from voxcpm_grpc.kernels.launch.counters import counters
from voxcpm_grpc.kernels.launch.overlap import launch_next, overlaps, wait

_ADDS_ITSELF = 8  # a launch with so many sequences adds parts up by itself
_AT_ONCE = tl.constexpr(8)  # parts that are read at a time


def decode_attention(
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
    max_context: int,
    *,
    gains: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
    first: bool = True,
    splits: int | None = None,
) -> Tensor:
    """Computes `reference.decode_attention`. q, k and v may be slices of one projection.

    gains: the weights [d] of the norms of query and key heads; None: they have none

    The launch depends on shapes and max_context only, not on the content of tensors, so it can be captured in a CUDA
    graph. Only if all other arguments than q, k and v were complete before an earlier attention began, as in all layers
    of a step but the first, may `first` be False. `splits` overrides the number of parts of a context.
    """
    sequences, heads, size = q.shape
    page_size, groups = k_pages.shape[1:3]
    if any(x.stride()[1:] != (size, 1) for x in (q, k, v)):
        raise ValueError("the heads of q, k and v must be contiguous")
    if not (k_pages.is_contiguous() and v_pages.is_contiguous()):
        raise ValueError(
            "k_pages and v_pages must be contiguous: pass one layer of the cache, not a slice of its pages"
        )
    if cos is not None and sin is not None and not (cos.is_contiguous() and sin.is_contiguous()):
        raise ValueError("cos and sin must be contiguous")
    if gains is not None and not all(gain.shape == (size,) and gain.is_contiguous() for gain in gains):
        raise ValueError(f"the gains must be contiguous and have {size} values")
    repeat = heads // groups
    if splits is None:
        splits = count_splits(sequences * groups, max_context, q.device)
    out = torch.empty(sequences, heads, size, dtype=q.dtype, device=q.device)
    part = out if splits == 1 else q.new_empty(sequences, splits, heads, size, dtype=torch.float32)
    # The largest score and the sum of weights of each part are needed to add parts up.
    stats = q.new_empty(sequences, splits, heads, 2, dtype=torch.float32) if splits > 1 else part
    adds = splits > 1 and sequences >= _ADDS_ITSELF
    overlap = overlaps(q.device)
    _decode_attention_kernel[(splits, sequences * groups)](
        q,
        k,
        v,
        q if cos is None else cos,
        q if sin is None else sin,
        *(gains or (q, k)),
        k_pages,
        v_pages,
        out,
        part,
        stats,
        counters(q.device, sequences * groups) if adds else part,
        context,
        block_table,
        write,
        size**-0.5 * 1.4426950408889634,  # scores are exponents of two: exp2 is one instruction
        eps,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        block_table.stride(0),
        splits,
        GROUPS=groups,
        REPEAT=repeat,
        SIZE=size,
        PAGE=page_size,
        TILE=max(16, triton.next_power_of_2(repeat)),
        ENTRIES=triton.next_power_of_2(repeat),
        KEYS=32 if q.dtype == torch.float32 else 64,
        WIDTH=max(16, triton.next_power_of_2(size)),
        NORM=gains is not None,
        ROTATE=cos is not None,
        SPLIT=splits > 1,
        ADDS=adds,
        OVERLAP=overlap,
        num_warps=8 if q.dtype == torch.float32 else 4,  # in float32 the registers of 4 do not suffice
        **({"launch_pdl": True} if overlap and not first else {}),
    )
    if splits > 1 and not adds:
        add_parts(part, stats, out, splits)
    return out


# Arguments that change from step to step are not specialized: a compilation would stall every stream.
@triton.jit(
    do_not_specialize=["cos", "sin", "q_gain", "k_gain", "context", "block_table", "write", "table_row", "splits"]
)
def _decode_attention_kernel(
    q,
    k,
    v,
    cos,
    sin,
    q_gain,
    k_gain,
    k_pages,
    v_pages,
    out,
    part,
    stats,
    arrived,
    context,
    block_table,
    write,
    scale,
    eps,
    q_row,
    k_row,
    v_row,
    table_row,
    splits,
    GROUPS: tl.constexpr,
    REPEAT: tl.constexpr,
    SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    ENTRIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    ROTATE: tl.constexpr,
    SPLIT: tl.constexpr,
    ADDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    split = tl.program_id(0)
    sequence = tl.program_id(1) // GROUPS
    group = tl.program_id(1) % GROUPS
    old = tl.load(context + sequence) - 1  # positions written by earlier steps; -1 for a row without a sequence
    first = 0
    end = old
    parts = 1
    if SPLIT:
        span = tl.cdiv(tl.cdiv(tl.maximum(old, 1), splits), KEYS) * KEYS
        first = split * span
        end = tl.minimum(old, first + span)
        parts = splits
        if ADDS:
            parts = tl.cdiv(tl.maximum(old, 1), span)
            if split >= parts:
                return  # the program does not wait: the other programs do
    column = tl.arange(0, WIDTH)
    wide = column < SIZE
    table = block_table + sequence * table_row
    k_from, v_from = k_pages + group * SIZE + column, v_pages + group * SIZE + column
    key, value = _block(k_from, v_from, table, first, end, wide, PAGE, KEYS, GROUPS * SIZE)
    q_gains, q_turned, k_gains, k_turned = column, column, column, column
    if NORM:
        q_gains, q_turned = _gains(q_gain, column, wide, SIZE)
        k_gains, k_turned = _gains(k_gain, column, wide, SIZE)
    wait(OVERLAP)

    entry = tl.arange(0, TILE)
    head = group * REPEAT + entry
    valid = (entry < REPEAT)[:, None] & wide[None, :]
    q_cos, q_sin = column, column
    if ROTATE:
        HALF: tl.constexpr = SIZE // 2
        q_cos = tl.load(cos + sequence * HALF + column % HALF, mask=wide, other=0.0).to(tl.float32)
        q_sin = tl.load(sin + sequence * HALF + column % HALF, mask=wide, other=0.0).to(tl.float32)
        q_sin = tl.where(column < HALF, -q_sin, q_sin)
    where = sequence * q_row + head[:, None] * SIZE
    gains = q_gains[None, :], q_turned[None, :]
    turn = q_cos[None, :], q_sin[None, :]
    query = _head(q + where, column[None, :], valid, gains, eps, turn, SIZE, NORM, ROTATE)
    top = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    acc = tl.zeros([TILE, WIDTH], tl.float32)
    if split == 0:
        # The newest position is written to its page for later steps; this step uses it from registers.
        newest = k + sequence * k_row + group * SIZE
        new_key = _head(newest, column, wide, (k_gains, k_turned), eps, (q_cos, q_sin), SIZE, NORM, ROTATE)
        new_value = tl.load(v + sequence * v_row + group * SIZE + column, mask=wide, other=0.0)
        slot = tl.load(write + sequence).to(tl.int64) * (GROUPS * SIZE)
        tl.store(k_from + slot, new_key, mask=wide)
        tl.store(v_from + slot, new_value, mask=wide)
        if old >= 0:
            top = tl.sum(query.to(tl.float32) * new_key.to(tl.float32)[None, :], 1) * scale
            total = tl.full([TILE], 1.0, tl.float32)
            acc += new_value.to(tl.float32)[None, :]
    for start in tl.range(first, end, KEYS, num_stages=1):  # pyright: ignore[reportGeneralTypeIssues]
        next_key, next_value = _block(k_from, v_from, table, start + KEYS, end, wide, PAGE, KEYS, GROUPS * SIZE)
        inside = start + tl.arange(0, KEYS) < end
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(inside[None, :], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - new_top[:, None])
        decay = tl.exp2(top - new_top)
        total = total * decay + tl.sum(weight, 1)
        acc = acc * decay[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        top = new_top
        key, value = next_key, next_value

    if parts > 1:
        index = (sequence * splits + split).to(tl.int64) * (GROUPS * REPEAT) + head
        tl.store(stats + index * 2, top, mask=entry < REPEAT)
        tl.store(stats + index * 2 + 1, total, mask=entry < REPEAT)
        if (first < end) | (split == 0):
            tl.store(part + index[:, None] * SIZE + column[None, :], acc, mask=valid)
        if ADDS:
            tl.debug_barrier()
            counter = arrived + tl.program_id(1)
            if tl.atomic_add(counter, 1, sem="acq_rel") < parts - 1:
                return
            tl.store(counter, 0)
            own = group * REPEAT + tl.arange(0, ENTRIES)
            own_end = (group + 1) * REPEAT
            _add_parts(out, part, stats, sequence, splits, parts, own, own_end, GROUPS * REPEAT, SIZE, WIDTH)
        return
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    where = (sequence * (GROUPS * REPEAT) + head)[:, None] * SIZE + column[None, :]
    tl.store(out + where, acc.to(out.dtype.element_ty), mask=valid)


@triton.jit
def _add_parts(
    out,
    part,
    stats,
    sequence,
    splits,
    parts,
    head,
    end,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Add up the parts of the heads `head` before `end` in a fixed order: the sum does not depend on timing."""
    column = tl.arange(0, WIDTH)
    valid = (head < end)[:, None] & (column < SIZE)[None, :]
    top = tl.full([head.shape[0]], float("-inf"), tl.float32)
    total = tl.zeros([head.shape[0]], tl.float32)
    acc = tl.zeros([head.shape[0], WIDTH], tl.float32)
    for start in tl.range(0, parts, _AT_ONCE, num_stages=1):  # pyright: ignore[reportGeneralTypeIssues]
        split = start + tl.arange(0, _AT_ONCE)
        index = (sequence * splits + split).to(tl.int64)[:, None] * HEADS + head[None, :]
        known = (split < parts)[:, None] & (head < end)[None, :]
        tops = tl.load(stats + index * 2, mask=known, other=float("-inf"), cache_modifier=".cg")
        totals = tl.load(stats + index * 2 + 1, mask=known, other=0.0, cache_modifier=".cg")
        where = index[:, :, None] * SIZE + column[None, None, :]
        accs = tl.load(part + where, mask=known[:, :, None] & valid[None, :, :], other=0.0, cache_modifier=".cg")
        new_top = tl.maximum(top, tl.max(tops, 0))
        base = tl.where(head < end, new_top, 0.0)
        factor = tl.exp2(tops - base[None, :])
        decay = tl.exp2(top - base)
        total = total * decay + tl.sum(totals * factor, 0)
        acc = acc * decay[:, None] + tl.sum(accs * factor[:, :, None], 0)
        top = new_top
    acc = acc / tl.where(head < end, total, 1.0)[:, None]
    where = (sequence * HEADS + head)[:, None] * SIZE + column[None, :]
    tl.store(out + where, acc.to(out.dtype.element_ty), mask=valid)


@triton.jit
def _block(k_from, v_from, table, start, end, wide, PAGE: tl.constexpr, KEYS: tl.constexpr, SLOT: tl.constexpr):
    """Keys and values of positions from `start` on. Slots from `end` on may hold NaN and are not read."""
    position = start + tl.arange(0, KEYS)
    inside = position < end
    page = tl.load(table + position // PAGE, mask=inside, other=0).to(tl.int64)
    where = ((page * PAGE + position % PAGE) * SLOT)[:, None]
    present = inside[:, None] & wide[None, :]
    key = tl.load(k_from[None, :] + where, mask=present, other=0.0)
    return key, tl.load(v_from[None, :] + where, mask=present, other=0.0)


@triton.jit
def _gains(gain, column, mask, SIZE: tl.constexpr):
    """The gains of the columns, and of the columns that are rotated with them, in float32."""
    own = tl.load(gain + column, mask=mask, other=0.0)
    return own.to(tl.float32), tl.load(gain + (column + SIZE // 2) % SIZE, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _head(head, column, mask, gains, eps, turn, SIZE: tl.constexpr, NORM: tl.constexpr, ROTATE: tl.constexpr):
    """The heads at addresses `head`, normalized, rotated by halves, and rounded to their dtype after each of these.

    gains: those of the columns, and of the columns that are rotated with them
    turn: cosines and sines, which are negative in the first half
    """
    own = tl.load(head + column, mask=mask, other=0.0)
    kind = own.dtype
    factor = 1.0
    if NORM:
        wide = own.to(tl.float32)
        factor = tl.rsqrt(tl.sum(wide * wide, len(own.shape) - 1, keep_dims=True) / SIZE + eps)
        own = ((wide * factor).to(kind).to(tl.float32) * gains[0]).to(kind)
    if ROTATE:
        other = tl.load(head + (column + SIZE // 2) % SIZE, mask=mask, other=0.0)
        if NORM:
            other = ((other.to(tl.float32) * factor).to(kind).to(tl.float32) * gains[1]).to(kind)
        own = (own.to(tl.float32) * turn[0] + other.to(tl.float32) * turn[1]).to(kind)
    return own
