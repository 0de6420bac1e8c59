"""Attention of one frame to a ring of past frames, which it joins, and the positions of the rings."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# The annotations of Triton's ranges and constants do not describe their use in a kernel.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def attend_next(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor,
    layer: int,
    position: Tensor,
    slot: Tensor,
    target: Tensor,
    table: tuple[Tensor, Tensor],
) -> Tensor:
    """Computes `codec_reference.attend_next` for contiguous kv. Rows may share a slot only if its memory is unused.

    A program has a KV head of a stream, and the query heads that share it.
    """
    streams, heads, size = q.shape
    groups, past = k.shape[1], kv.shape[3]
    if any(x.stride(1) != size or x.stride(2) != 1 for x in (q, k, v)):
        raise ValueError(f"heads must be contiguous, the strides are {q.stride()}, {k.stride()} and {v.stride()}")
    out = torch.empty(streams, heads, size, dtype=q.dtype, device=q.device)
    _attend_next_kernel[(streams, groups)](
        q,
        k,
        v,
        kv,
        position,
        slot,
        target,
        *table,
        out,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        kv.stride(0),
        layer * kv.stride(1),
        size**-0.5,
        GROUPS=groups,
        SHARED=heads // groups,
        HALF=size // 2,
        PAST=past,
        HALF_BLOCK=triton.next_power_of_2(size // 2),
        PAST_BLOCK=triton.next_power_of_2(past),
    )
    return out


def advance(position: Tensor, slot: Tensor, target: Tensor, frames: int, past: int) -> None:
    """Computes `codec_reference.advance`."""
    _advance_ring_kernel[(len(slot),)](position, slot, target, frames, past)


# Arguments that change from step to step are not specialized: a compilation would stall every stream. The offset of a
# layer differs in each launch of a step.
@triton.jit(do_not_specialize=["slot", "target", "layer_at"])
def _attend_next_kernel(
    q,
    k,
    v,
    kv,
    position,
    slot,
    target,
    cos,
    sin,
    out,
    q_row,
    k_row,
    v_row,
    kv_slot,
    layer_at,
    scale,
    GROUPS: tl.constexpr,
    SHARED: tl.constexpr,
    HALF: tl.constexpr,
    PAST: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    PAST_BLOCK: tl.constexpr,
):
    SIZE: tl.constexpr = 2 * HALF
    VALUES: tl.constexpr = PAST * GROUPS * SIZE  # from the keys of a layer to its values
    stream, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half, entry = tl.arange(0, HALF_BLOCK), tl.arange(0, PAST_BLOCK)
    inside = half < HALF
    source = tl.load(slot + stream)
    at = tl.load(position + source)
    age = (at + (PAST - 1) - entry) % PAST + 1
    filled = (entry < PAST) & (age <= at)
    known = filled[:, None] & inside[None, :]
    ring = kv + source * kv_slot + layer_at + entry[:, None] * (GROUPS * SIZE) + head * SIZE + half[None, :]
    turn = age[:, None] * HALF + half[None, :]
    c, s = tl.load(cos + turn, mask=known, other=0.0), tl.load(sin + turn, mask=known, other=0.0)
    first = tl.load(ring, mask=known, other=0.0).to(tl.float32)
    second = tl.load(ring + HALF, mask=known, other=0.0).to(tl.float32)
    key0, key1 = first * c - second * s, second * c + first * s
    value0 = tl.load(ring + VALUES, mask=known, other=0.0).to(tl.float32)
    value1 = tl.load(ring + VALUES + HALF, mask=known, other=0.0).to(tl.float32)
    fresh = k + stream * k_row + head * SIZE + half
    new_key0, new_key1 = tl.load(fresh, mask=inside, other=0.0), tl.load(fresh + HALF, mask=inside, other=0.0)
    fresh = v + stream * v_row + head * SIZE + half
    new_value0, new_value1 = tl.load(fresh, mask=inside, other=0.0), tl.load(fresh + HALF, mask=inside, other=0.0)
    for shared in tl.static_range(SHARED):
        number = head * SHARED + shared
        query = q + stream * q_row + number * SIZE + half
        query0 = tl.load(query, mask=inside, other=0.0).to(tl.float32) * scale
        query1 = tl.load(query + HALF, mask=inside, other=0.0).to(tl.float32) * scale
        score = tl.sum(query0[None, :] * key0 + query1[None, :] * key1, 1)
        score = tl.where(filled, score, float("-inf"))
        own = tl.sum(query0 * new_key0.to(tl.float32) + query1 * new_key1.to(tl.float32), 0)
        most = tl.maximum(tl.max(score, 0), own)
        weight, own = tl.exp(score - most), tl.exp(own - most)
        total = tl.sum(weight, 0) + own
        mixed0 = tl.sum(weight[:, None] * value0, 0) + own * new_value0.to(tl.float32)
        mixed1 = tl.sum(weight[:, None] * value1, 0) + own * new_value1.to(tl.float32)
        result = out + (stream * (GROUPS * SHARED) + number) * SIZE + half
        kind = out.dtype.element_ty
        tl.store(result, (mixed0 / total).to(kind), mask=inside)
        tl.store(result + HALF, (mixed1 / total).to(kind), mask=inside)
    tl.debug_barrier()  # every thread has read the oldest entry
    oldest = kv + tl.load(target + stream) * kv_slot + layer_at + (at % PAST) * (GROUPS * SIZE) + head * SIZE + half
    kind = kv.dtype.element_ty
    tl.store(oldest, new_key0.to(kind), mask=inside)
    tl.store(oldest + HALF, new_key1.to(kind), mask=inside)
    tl.store(oldest + VALUES, new_value0.to(kind), mask=inside)
    tl.store(oldest + VALUES + HALF, new_value1.to(kind), mask=inside)


@triton.jit(do_not_specialize=["slot", "target", "frames"])
def _advance_ring_kernel(position, slot, target, frames, past):
    stream = tl.program_id(0)
    after = tl.load(position + tl.load(slot + stream)) + frames
    after = tl.where(after < 2 * past, after, past + after % past)
    tl.store(position + tl.load(target + stream), after)
