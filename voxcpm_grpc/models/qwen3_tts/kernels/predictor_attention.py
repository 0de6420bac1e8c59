"""Attention of the new tokens of each sequence over the few tokens of a step, with norms of heads and rotation.

One launch does what `predictor.PlainAttention` does: it normalizes and rotates the heads of queries and keys, keeps
keys and values for the next passes of the step, and attends.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# The annotations of Triton's ranges and constants do not describe their use in a kernel.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.attention import HeadNorms, Rotation
from voxcpm_grpc.kernels.launch.overlap import chained, launch_next, wait

MAX_TOKENS = 16
MAX_NEW = 2


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """A `predictor.StepAttention` in one launch."""

    norms: Sequence[HeadNorms]  # of each layer
    rope: Rotation  # of all positions of a step

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, kv: Tensor, start: int, wanted: range | None = None
    ) -> Tensor:
        new, sequences, heads, size = q.shape
        groups, tokens = k.shape[2], kv.shape[2]
        wanted = range(new) if wanted is None else wanted
        _check(q, k, v, kv[layer], start)
        out = q.new_empty(len(wanted), sequences, heads, size)
        norms = self.norms[layer]
        _attention_kernel[(sequences, groups)](
            q,
            k,
            v,
            norms.q,
            norms.k,
            self.rope.cos,
            self.rope.sin,
            kv[layer],
            out,
            norms.eps,
            size**-0.5 * 1.4426950408889634,  # scores are exponents of two: exp2 is one instruction
            q.stride(1),
            k.stride(1),
            v.stride(1),
            start,
            NEW=new,
            FIRST=wanted.start,
            WANTED=len(wanted),
            TOKENS=tokens,
            KEYS=MAX_TOKENS,
            HEADS=heads,
            REPEAT=heads // groups,
            HALF=size // 2,
            num_warps=1,
            **chained(q.device),
        )
        return out


def _check(q: Tensor, k: Tensor, v: Tensor, kv: Tensor, start: int) -> None:
    new, sequences, heads, size = q.shape
    groups, tokens = k.shape[2], kv.shape[1]
    if new > MAX_NEW or tokens > MAX_TOKENS or start + new > tokens:
        raise ValueError(
            f"{new} tokens from {start} on do not fit: {MAX_NEW} at a time, {min(tokens, MAX_TOKENS)} in all"
        )
    if heads % groups or size & (size - 1) or not 16 <= size <= 256:
        raise ValueError(f"{heads} heads of {size} values with {groups} KV heads are not supported")
    if not all(x.stride()[2:] == (size, 1) and x.stride(0) == sequences * x.stride(1) for x in (q, k, v)):
        raise ValueError("the heads of q, k and v must be contiguous, and the sequences of all tokens evenly spaced")
    if kv.shape != (2, tokens, sequences, groups, size) or not kv.is_contiguous() or kv.dtype != q.dtype:
        raise ValueError(f"the memory must be contiguous [2, tokens, {sequences}, {groups}, {size}] of {q.dtype}")


# A step has the same launches with other starts: they are not specialized, so one compilation serves all.
@triton.jit(do_not_specialize=["start"])
def _attention_kernel(
    q,
    k,
    v,
    q_norm,
    k_norm,
    cos,
    sin,
    kv,
    out,
    eps,
    scale,
    q_row,
    k_row,
    v_row,
    start,
    NEW: tl.constexpr,
    FIRST: tl.constexpr,
    WANTED: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    HEADS: tl.constexpr,
    REPEAT: tl.constexpr,
    HALF: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    SIZE: tl.constexpr = 2 * HALF
    launch_next(OVERLAP)
    sequence, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequences, groups = tl.num_programs(0), tl.num_programs(1)
    half = tl.arange(0, HALF)
    k_gain, k_gain2 = tl.load(k_norm + half).to(tl.float32), tl.load(k_norm + HALF + half).to(tl.float32)
    q_gain, q_gain2 = tl.load(q_norm + half).to(tl.float32), tl.load(q_norm + HALF + half).to(tl.float32)
    key = tl.arange(0, KEYS)[:, None]
    wait(OVERLAP)

    # The tokens of earlier passes come from memory, the new ones from the projection.
    token = sequences * groups * SIZE  # values between two tokens in memory
    mine = kv + (sequence * groups + group) * SIZE
    past = key < start
    where = mine + key * token + half[None, :]
    k1, k2 = tl.load(where, mask=past, other=0.0), tl.load(where + HALF, mask=past, other=0.0)
    where += TOKENS * token
    v1, v2 = tl.load(where, mask=past, other=0.0), tl.load(where + HALF, mask=past, other=0.0)
    kind = k1.dtype
    for new in tl.static_range(NEW):
        row = new * sequences + sequence
        place = start + new
        rotation = place * HALF + half
        c, s = tl.load(cos + rotation).to(tl.float32), tl.load(sin + rotation).to(tl.float32)
        at = k + row * k_row + group * SIZE + half
        a, b = _normalized(at, k_gain, k_gain2, eps, HALF)
        a, b = (a * c - b * s).to(kind), (b * c + a * s).to(kind)
        kept = mine + place * token + half
        tl.store(kept, a)
        tl.store(kept + HALF, b)
        k1, k2 = tl.where(key == place, a[None, :], k1), tl.where(key == place, b[None, :], k2)
        at = v + row * v_row + group * SIZE + half
        a, b = tl.load(at), tl.load(at + HALF)
        kept += TOKENS * token
        tl.store(kept, a)
        tl.store(kept + HALF, b)
        v1, v2 = tl.where(key == place, a[None, :], v1), tl.where(key == place, b[None, :], v2)

    k1, k2, v1, v2 = k1.to(tl.float32), k2.to(tl.float32), v1.to(tl.float32), v2.to(tl.float32)
    for number in tl.static_range(WANTED):
        place = start + FIRST + number
        rotation = place * HALF + half
        c, s = tl.load(cos + rotation).to(tl.float32), tl.load(sin + rotation).to(tl.float32)
        for repeat in tl.static_range(REPEAT):
            head = group * REPEAT + repeat
            at = q + ((FIRST + number) * sequences + sequence) * q_row + head * SIZE + half
            a, b = _normalized(at, q_gain, q_gain2, eps, HALF)
            a, b = (a * c - b * s).to(kind).to(tl.float32), (b * c + a * s).to(kind).to(tl.float32)
            score = (tl.sum(k1 * a[None, :], 1) + tl.sum(k2 * b[None, :], 1)) * scale
            score = tl.where(tl.arange(0, KEYS) <= place, score, float("-inf"))
            weight = tl.exp2(score - tl.max(score, 0))
            weight = (weight / tl.sum(weight, 0))[:, None]
            to = out + ((number * sequences + sequence) * HEADS + head) * SIZE + half
            tl.store(to, tl.sum(v1 * weight, 0).to(kind))
            tl.store(to + HALF, tl.sum(v2 * weight, 0).to(kind))


@triton.jit
def _normalized(at, gain, gain2, eps, HALF: tl.constexpr):
    """The halves of a head at address `at` after its norm, rounded where a norm of its own rounds them, in float32."""
    a, b = tl.load(at), tl.load(at + HALF)
    kind = a.dtype
    a, b = a.to(tl.float32), b.to(tl.float32)
    factor = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / (2 * HALF) + eps)
    a, b = (a * factor).to(kind).to(tl.float32), (b * factor).to(kind).to(tl.float32)
    return (a * gain).to(kind).to(tl.float32), (b * gain2).to(kind).to(tl.float32)
