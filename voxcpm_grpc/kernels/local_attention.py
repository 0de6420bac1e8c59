"""Bidirectional attention inside short sequences, the rotation included: one launch for what fits a tile."""

# pyright: reportArgumentType=false, reportCallIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch import launch_next, multiprocessors, overlaps, wait

MAX_TOKENS = 16


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    *,
    heads: int | None = None,
) -> Tensor:
    """What `reference.local_attention` says, for up to MAX_TOKENS tokens; q, k and v may be slices of one projection.

    `heads` overrides how many query heads share one program.
    """
    sequences, tokens, count, size = q.shape
    groups = k.shape[2]
    if tokens > MAX_TOKENS:
        raise ValueError(f"a sequence has {tokens} tokens, this kernel takes {MAX_TOKENS}")
    if not all(x.stride()[2:] == (size, 1) and x.stride(0) == tokens * x.stride(1) for x in (q, k, v)):
        raise ValueError("the heads of q, k and v must be contiguous, and the tokens of all sequences evenly spaced")
    if cos is not None and sin is not None and not (cos.is_contiguous() and sin.is_contiguous()):
        raise ValueError("cos and sin must be contiguous")
    repeat = count // groups
    if heads is None:
        heads = _heads(sequences * count, repeat, q.device)
    out = q.new_empty(q.shape)
    overlap = overlaps(q.device)
    _local_attention_kernel[(sequences, count // heads)](
        q,
        k,
        v,
        q if cos is None else cos,
        q if sin is None else sin,
        out,
        size**-0.5 * 1.4426950408889634,  # scores in powers of two: exp2 is the device's own instruction
        q.stride(1),
        k.stride(1),
        v.stride(1),
        TOKENS=tokens,
        COUNT=count,
        REPEAT=repeat,
        HEADS=heads,
        HALF=size // 2,
        TILE=max(16, triton.next_power_of_2(tokens * heads)),
        KEYS=MAX_TOKENS,
        WIDTH=max(16, triton.next_power_of_2(size // 2)),
        OVERLAP=overlap,
        ROTATE=cos is not None,
        num_warps=2 if tokens * heads <= 32 else 4 if tokens * heads <= 64 else 8,
        **({"launch_pdl": True} if overlap else {}),
    )
    return out


def _heads(total: int, repeat: int, device: torch.device) -> int:
    """Heads of one KV group per program: as many as leave a few programs for every multiprocessor."""
    heads = 1
    while heads * 2 <= repeat and repeat % (heads * 2) == 0 and total // (heads * 2) >= 4 * multiprocessors(device):
        heads *= 2
    return heads


@triton.jit(do_not_specialize=["cos", "sin"])
def _local_attention_kernel(
    q,
    k,
    v,
    cos,
    sin,
    out,
    scale,
    q_row,
    k_row,
    v_row,
    TOKENS: tl.constexpr,
    COUNT: tl.constexpr,
    REPEAT: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    TILE: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
    ROTATE: tl.constexpr,
):
    SIZE: tl.constexpr = HALF * 2
    launch_next(OVERLAP)
    sequence = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * HEADS
    group = first // REPEAT
    # Tile entry i is token i % TOKENS of head first + i // TOKENS.
    entry = tl.arange(0, TILE)
    token = entry % TOKENS
    head = first + entry // TOKENS
    key = tl.arange(0, KEYS)
    column = tl.arange(0, WIDTH)
    inside = (entry < TOKENS * HEADS)[:, None] & (column < HALF)[None, :]
    present = (key < TOKENS)[:, None] & (column < HALF)[None, :]
    q_cos, q_sin, k_cos, k_sin = entry, entry, key, key
    if ROTATE:
        where = token[:, None] * HALF + column[None, :]
        q_cos = tl.load(cos + where, mask=inside, other=0.0).to(tl.float32)
        q_sin = tl.load(sin + where, mask=inside, other=0.0).to(tl.float32)
        where = key[:, None] * HALF + column[None, :]
        k_cos = tl.load(cos + where, mask=present, other=0.0).to(tl.float32)
        k_sin = tl.load(sin + where, mask=present, other=0.0).to(tl.float32)
    wait(OVERLAP)

    where = q + (sequence * TOKENS + token)[:, None] * q_row + head[:, None] * SIZE + column[None, :]
    q1, q2 = _rotated(where, inside, q_cos, q_sin, HALF, ROTATE)
    where = k + (sequence * TOKENS + key)[:, None] * k_row + group * SIZE + column[None, :]
    k1, k2 = _rotated(where, present, k_cos, k_sin, HALF, ROTATE)
    where = v + (sequence * TOKENS + key)[:, None] * v_row + group * SIZE + column[None, :]
    v1 = tl.load(where, mask=present, other=0.0)
    v2 = tl.load(where + HALF, mask=present, other=0.0)
    score = tl.dot(q1, tl.trans(k1), input_precision="ieee")
    score = tl.dot(q2, tl.trans(k2), score, input_precision="ieee") * scale
    score = tl.where((key < TOKENS)[None, :], score, float("-inf"))
    weight = tl.exp2(score - tl.max(score, 1)[:, None])
    total = tl.sum(weight, 1)[:, None]
    weight = weight.to(v1.dtype)
    where = out + ((sequence * TOKENS + token)[:, None] * COUNT + head[:, None]) * SIZE + column[None, :]
    mixed = tl.dot(weight, v1, input_precision="ieee") / total
    tl.store(where, mixed.to(out.dtype.element_ty), mask=inside)
    mixed = tl.dot(weight, v2, input_precision="ieee") / total
    tl.store(where + HALF, mixed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rotated(where, mask, cos, sin, HALF: tl.constexpr, ROTATE: tl.constexpr):
    """The rotated halves of each head, rounded to its own type."""
    a = tl.load(where, mask=mask, other=0.0)
    b = tl.load(where + HALF, mask=mask, other=0.0)
    if ROTATE:
        kind = a.dtype
        wide_a, wide_b = a.to(tl.float32), b.to(tl.float32)
        a = (wide_a * cos - wide_b * sin).to(kind)
        b = (wide_b * cos + wide_a * sin).to(kind)
    return a, b
