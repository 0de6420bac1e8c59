"""Bidirectional attention inside short sequences that fit into a tile, with norm and rotation, in one launch."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# The annotations of Triton's ranges and constants do not describe their use in a kernel.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import launch_next, multiprocessors, overlaps, wait
from voxcpm_grpc.kernels.rows.padded_rows import empty_rows

MAX_TOKENS = 16


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    *,
    rows: Tensor | None = None,
    eps: float = 0.0,
    wanted: range | None = None,
    heads: int | None = None,
) -> Tensor:
    """Computes `reference.local_attention` for up to MAX_TOKENS tokens. q, k and v may be slices of one projection.

    `heads` overrides the number of query heads of one program.
    """
    tokens, sequences, count, size = q.shape
    groups = k.shape[2]
    if tokens > MAX_TOKENS:
        raise ValueError(f"a sequence has {tokens} tokens, this kernel takes {MAX_TOKENS}")
    if not all(x.stride()[2:] == (size, 1) and x.stride(0) == sequences * x.stride(1) for x in (q, k, v)):
        raise ValueError("the heads of q, k and v must be contiguous, and the sequences of all tokens evenly spaced")
    if cos is not None and sin is not None and not (cos.is_contiguous() and sin.is_contiguous()):
        raise ValueError("cos and sin must be contiguous")
    if rows is not None and not (rows.is_contiguous() and len(rows) == sequences * tokens):
        raise ValueError(f"rows must be contiguous, and {sequences * tokens} of them")
    repeat, inputs = count // groups, 1 if rows is None else rows.shape[1]
    if heads is None:
        heads = _heads(sequences * count, repeat, q.device)
    if wanted is None:
        wanted = range(tokens)
    out = empty_rows(q, len(wanted) * sequences, count * size).view(len(wanted), sequences, count, size)
    overlap = overlaps(q.device)
    _local_attention_kernel[(sequences, count // heads)](
        q,
        k,
        v,
        q if cos is None else cos,
        q if sin is None else sin,
        q if rows is None else rows,
        out,
        eps,
        size**-0.5 * 1.4426950408889634,  # scores are exponents of two: exp2 is one instruction
        q.stride(1),
        k.stride(1),
        v.stride(1),
        wanted.start,
        wanted.stop,
        TOKENS=tokens,
        COUNT=count,
        REPEAT=repeat,
        HEADS=heads,
        HALF=size // 2,
        KEYS=MAX_TOKENS,
        WIDTH=max(16, triton.next_power_of_2(size // 2)),
        OVERLAP=overlap,
        ROTATE=cos is not None,
        NORM=rows is not None,
        INPUTS=inputs,
        INPUT_BLOCK=min(256, triton.next_power_of_2(inputs)),
        num_warps=_warps(tokens, heads, q.dtype),
        **({"launch_pdl": True} if overlap else {}),
    )
    return out


def _warps(tokens: int, heads: int, dtype: torch.dtype) -> int:
    warps = 2 if tokens * heads <= 32 else 4 if tokens * heads <= 64 else 8
    # In float32 a warp has registers for one head. With two they spill, up to 7 kB a thread.
    return max(warps, heads) if dtype == torch.float32 else warps


def _heads(total: int, repeat: int, device: torch.device) -> int:
    """Heads of one KV group for each program: as many as possible with a program for nearly every multiprocessor."""
    heads, enough = 1, 0.9 * multiprocessors(device)
    while heads * 2 <= repeat and repeat % (heads * 2) == 0 and total // (heads * 2) >= enough:
        heads *= 2
    return heads


# The wanted tokens differ between the layers of a stack. They are not specialized, so one compilation serves all.
@triton.jit(do_not_specialize=["cos", "sin", "begin", "end"])
def _local_attention_kernel(
    q,
    k,
    v,
    cos,
    sin,
    rows,
    out,
    eps,
    scale,
    q_row,
    k_row,
    v_row,
    begin,
    end,
    TOKENS: tl.constexpr,
    COUNT: tl.constexpr,
    REPEAT: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
    ROTATE: tl.constexpr,
    NORM: tl.constexpr,
    INPUTS: tl.constexpr,
    INPUT_BLOCK: tl.constexpr,
):
    SIZE: tl.constexpr = HALF * 2
    TILE: tl.constexpr = HEADS * KEYS
    launch_next(OVERLAP)
    sequence = tl.program_id(0).to(tl.int64)
    sequences = tl.num_programs(0)
    first = tl.program_id(1) * HEADS
    group = first // REPEAT
    # Queries are [HEADS, KEYS, WIDTH], so that queries and keys are rotated with the same table.
    head = tl.arange(0, HEADS)[:, None, None]
    token = tl.arange(0, KEYS)[None, :, None]
    column = tl.arange(0, WIDTH)[None, None, :]
    inside = (token >= begin) & (token < end) & (column < HALF)
    key, half = tl.arange(0, KEYS)[:, None], tl.arange(0, WIDTH)[None, :]
    present = (key < TOKENS) & (half < HALF)
    q_cos, q_sin, k_cos, k_sin = token, token, key, key
    if ROTATE:
        where = token * HALF + column
        q_cos = tl.load(cos + where, mask=inside, other=0.0).to(tl.float32)
        q_sin = tl.load(sin + where, mask=inside, other=0.0).to(tl.float32)
        where = key * HALF + half
        k_cos = tl.load(cos + where, mask=present, other=0.0).to(tl.float32)
        k_sin = tl.load(sin + where, mask=present, other=0.0).to(tl.float32)
    wait(OVERLAP)

    norm = tl.full([KEYS], 1.0, tl.float32)
    if NORM:
        norm = _norm_of(rows + (key * sequences + sequence) * INPUTS, key < TOKENS, eps, KEYS, INPUTS, INPUT_BLOCK)
    where = q + (token * sequences + sequence) * q_row + (first + head) * SIZE + column
    q1, q2 = _rotated(where, inside & (head < HEADS), q_cos, q_sin, HALF, ROTATE)
    q1, q2 = tl.reshape(q1, [TILE, WIDTH]), tl.reshape(q2, [TILE, WIDTH])
    where = k + (key * sequences + sequence) * k_row + group * SIZE + half
    k1, k2 = _rotated(where, present, k_cos, k_sin, HALF, ROTATE)
    where = v + (key * sequences + sequence) * v_row + group * SIZE + half
    v1 = tl.load(where, mask=present, other=0.0)
    v2 = tl.load(where + HALF, mask=present, other=0.0)
    score = tl.dot(q1, tl.trans(k1), input_precision="ieee")
    score = tl.dot(q2, tl.trans(k2), score, input_precision="ieee") * scale
    if NORM:  # the scale of a query or a key applies to its scores, the scale of a value to its weight
        queries = tl.reshape(tl.broadcast_to(norm[None, :], [HEADS, KEYS]), [TILE])
        score *= queries[:, None] * norm[None, :]
    score = tl.where((tl.arange(0, KEYS) < TOKENS)[None, :], score, float("-inf"))
    weight = tl.exp2(score - tl.max(score, 1)[:, None])
    total = tl.sum(weight, 1)[:, None]
    if NORM:
        weight *= norm[None, :]
    weight = weight.to(v1.dtype)
    entry = tl.arange(0, TILE)[:, None]
    query = entry % KEYS
    row = ((query - begin) * sequences + sequence) * COUNT + first + entry // KEYS
    where = out + row * SIZE + half
    mask = (query >= begin) & (query < end) & (half < HALF)
    mixed = tl.dot(weight, v1, input_precision="ieee") / total
    tl.store(where, mixed.to(out.dtype.element_ty), mask=mask)
    mixed = tl.dot(weight, v2, input_precision="ieee") / total
    tl.store(where + HALF, mixed.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _norm_of(row, present, eps, KEYS: tl.constexpr, INPUTS: tl.constexpr, BLOCK: tl.constexpr):
    """The reciprocal root mean square of each row that begins at address `row` [KEYS, 1]."""
    squares = tl.zeros([KEYS, BLOCK], tl.float32)
    for begin in tl.static_range(0, INPUTS, BLOCK):
        column = begin + tl.arange(0, BLOCK)[None, :]
        wide = tl.load(row + column, mask=present & (column < INPUTS), other=0.0).to(tl.float32)
        squares += wide * wide
    return tl.rsqrt(tl.sum(squares, 1) / INPUTS + eps)


@triton.jit
def _rotated(where, mask, cos, sin, HALF: tl.constexpr, ROTATE: tl.constexpr):
    """The rotated halves of each head, rounded to its dtype."""
    a = tl.load(where, mask=mask, other=0.0)
    b = tl.load(where + HALF, mask=mask, other=0.0)
    if ROTATE:
        kind = a.dtype
        wide_a, wide_b = a.to(tl.float32), b.to(tl.float32)
        a = (wide_a * cos - wide_b * sin).to(kind)
        b = (wide_b * cos + wide_a * sin).to(kind)
    return a, b
