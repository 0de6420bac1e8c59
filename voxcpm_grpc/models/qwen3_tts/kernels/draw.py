"""Draws a code of each sequence in one launch. Gives what the plain version gives, `sampling.PlainSampler`.

A program draws for one sequence. It loads the logits once and keeps them in registers. Nothing is sorted: the bounds of
top_k and top_p are found by comparing all scores with one or two candidates at a time.

Dimensions: b sequences, n slots, v ids.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportPossiblyUnboundVariable=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import chained, launch_next, wait
from voxcpm_grpc.models.qwen3_tts.sampling import Choose, CodeIds, FirstCodes, Options, Points

DTYPES = (torch.bfloat16, torch.float32)
MOST = 8192  # ids, whose logits are in the registers of a block


class FusedSampler:
    """A `Sampler` that draws each code in one launch, which a CUDA graph may capture."""

    def __init__(self, ids: CodeIds) -> None:
        """Raises ValueError for more than MOST ids."""
        if max(ids.codes, ids.vocabulary) > MOST:
            raise ValueError(f"a block draws from at most {MOST} ids, not {max(ids.codes, ids.vocabulary)}")
        self._ids = ids

    def first(self, logits: Tensor, slot: Tensor, points: Points, options: Options, state: FirstCodes) -> Tensor:
        """Raises ValueError for tensors of other dtypes, shapes or layouts than `Sampler` and `FirstCodes` name."""
        ids, seen = self._ids, state.seen
        _check(logits, ids.vocabulary, slot, points, options)
        if not (_is_list(state.penalty, torch.float32) and _is_list(state.least, torch.int64)):
            raise ValueError("the penalties must be float32 [n], and the steps of the first end int64 [n]")
        if state.penalty.stride() != options.temperature.stride() or state.least.stride() != options.top_k.stride():
            raise ValueError("numbers of slots must have the stride of the other options of their dtype")
        if seen.dtype != torch.bool or seen.shape[1:] != logits.shape[1:] or not seen.is_contiguous():
            raise ValueError(f"the seen ids are {seen.dtype} {list(seen.shape)}, not contiguous bool [n, v]")
        first = state.penalty, state.least, seen.view(torch.int8)
        return _launch(logits, slot, points, options, first, 0, ids)

    def others(self, slot: Tensor, points: Points, options: Options) -> Choose:
        """Returns a function that raises ValueError for tensors of other dtypes, shapes or layouts."""
        ids = self._ids

        def choose(logits: Tensor, group: int) -> Tensor:
            _check(logits, ids.codes, slot, points, options)
            if not 0 < group < ids.groups:
                raise ValueError(f"a step has codes 1 to {ids.groups - 1} behind the first, not {group}")
            return _launch(logits, slot, points, options, None, group, ids)

        return choose


def _check(logits: Tensor, size: int, slot: Tensor, points: Points, options: Options) -> None:
    """Raises ValueError."""
    if logits.dtype not in DTYPES or logits.shape != (len(slot), size) or not logits.is_contiguous():
        found = f"{logits.dtype} {list(logits.shape)}"
        raise ValueError(f"logits are {found}, not contiguous bfloat16 or float32 [{len(slot)}, {size}]")
    if not _is_list(slot, torch.int64) or not slot.is_contiguous():
        raise ValueError("the slots must be contiguous int64 [b]")
    coordinates = points.seed, points.turn, points.segment, points.step
    if not all(_is_list(point, torch.int64) and point.stride() == points.seed.stride() for point in coordinates):
        raise ValueError("the coordinates must be int64 [n] with the same stride")
    floats = options.temperature, options.cut
    if not (_is_list(options.top_k, torch.int64) and all(_is_list(one, torch.float32) for one in floats)):
        raise ValueError("the options must be float32 [n], and top_k int64 [n]")
    if options.temperature.stride() != options.cut.stride():
        raise ValueError("the temperatures and cuts must have the same stride")


def _is_list(tensor: Tensor, dtype: torch.dtype) -> bool:
    return tensor.dtype == dtype and tensor.ndim == 1


def _launch(
    logits: Tensor,
    slot: Tensor,
    points: Points,
    options: Options,
    first: tuple[Tensor, Tensor, Tensor] | None,
    number: int,
    ids: CodeIds,
) -> Tensor:
    """first: the tensors of `FirstCodes`. number: that of the code in its step."""
    b, size = logits.shape
    out = torch.empty(b, dtype=torch.int64, device=logits.device)
    block = max(triton.next_power_of_2(size), 128)  # a counter of the noise gives the numbers of four ids
    launch: dict[str, Any] = chained(logits.device)
    _draw_kernel[(b,)](
        logits,
        slot,
        points.seed,
        points.turn,
        points.segment,
        points.step,
        options.temperature,
        options.top_k,
        options.cut,
        *(first or (options.cut, options.top_k, logits)),
        out,
        points.seed.stride(0),
        options.temperature.stride(0),
        options.top_k.stride(0),
        number,
        ids.groups,
        ids.codes,
        ids.end,
        SIZE=size,
        BLOCK=block,
        FIRST=first is not None,
        # Without a penalty the scores have the order of the logits, whose distinct values stay distinct.
        BITS=16 if logits.dtype == torch.bfloat16 and first is None else 32,
        num_warps=min(max(block // 256, 4), 16),
        **launch,
    )
    return out


# The alignment of views and the number of a code are not specialized: each would be a variant to compile.
@triton.jit(
    do_not_specialize=[
        *("slot", "seed", "turn", "segment", "step", "temperature", "top_k", "cut", "penalty", "least", "out"),
        *("point_stride", "float_stride", "integer_stride", "number", "groups", "codes", "end"),
    ]
)
def _draw_kernel(
    logits,
    slot,
    seed,
    turn,
    segment,
    step,
    temperature,
    top_k,
    cut,
    penalty,
    least,
    seen,
    out,
    point_stride,
    float_stride,
    integer_stride,
    number,
    groups,
    codes,
    end,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    FIRST: tl.constexpr,
    BITS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    wait(OVERLAP)
    sequence = tl.program_id(0).to(tl.int64)
    ids = tl.arange(0, BLOCK)
    inside = ids < SIZE
    score = tl.load(logits + sequence * SIZE + ids, mask=inside, other=-float("inf")).to(tl.float32)
    row = tl.load(slot + sequence)
    steps = tl.load(step + row * point_stride)
    heat, share = tl.load(temperature + row * float_stride), tl.load(cut + row * float_stride)
    count = tl.load(top_k + row * integer_stride)
    if FIRST:
        factor = tl.load(penalty + row * float_stride)
        early = steps < tl.load(least + row * integer_stride)
        repeated = tl.load(seen + row * SIZE + ids, mask=inside, other=0) != 0
    noise = _gumbel(  # computed while the logits are loaded
        tl.load(seed + row * point_stride),
        groups * steps + number,
        tl.load(segment + row * point_stride),
        tl.load(turn + row * point_stride),
        BLOCK,
    )
    if FIRST:
        score = tl.where(repeated, tl.where(score < 0, score * factor, tl.div_rn(score, factor)), score)
        score = tl.where((ids == end) & early | (ids >= codes) & (ids != end), -float("inf"), score)
    # A greedy draw is one from all ids without noise. It takes no branch, in which loads would start late.
    greedy = heat <= 0
    heat = tl.where(greedy, 1.0, heat)
    if BITS == 16:
        key = _key(score, inside, BITS)
        score = score / heat
    else:
        score = tl.div_rn(score, heat)  # exactly as in the plain version, since equal scores are kept together
        key = _key(score, inside, BITS)
    score = _filtered(score, key, tl.where(greedy, SIZE, count), tl.where(greedy, 0.0, share), SIZE, BITS)
    score += tl.where(greedy, 0.0, noise)
    chosen = tl.minimum(tl.argmax(score, 0), SIZE - 1)  # an id, even if all logits are NaN
    tl.store(out + sequence, chosen.to(tl.int64))
    if FIRST:
        tl.store(seen + row * SIZE + chosen, 1)


@triton.jit
def _key(score, inside, BITS: tl.constexpr):
    """Unsigned integers of BITS in the order of scores, equal for equal scores; 0 outside, less than all others."""
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)  # -0.0 equals 0.0
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF) ^ -0x80000000).to(tl.uint32, bitcast=True)
    return tl.where(inside, key >> (32 - BITS), 0)


@triton.jit
def _filtered(score, key, top_k, cut, SIZE: tl.constexpr, BITS: tl.constexpr):
    """Scores, and -inf at ids that are not among the top_k or not in top_p."""
    bound = _bound_of_largest(key, tl.minimum(tl.maximum(top_k, 1), SIZE).to(tl.int32), SIZE, BITS)
    kept = key >= bound
    if cut > 0:
        weight = tl.where(kept, tl.exp(score - tl.max(score, 0)), 0.0)
        limit = cut * tl.sum(weight, 0)
        bound, below = _bound_of_mass(key, weight, limit, bound)
        # Of the equal scores at the bound those with the smallest ids are dropped, never all of them.
        equal = (key == bound).to(tl.int32)
        each = tl.max(tl.where(key == bound, weight, 0.0), 0)
        dropped = tl.minimum(tl.div_rn(limit - below, each).to(tl.int32), tl.sum(equal, 0) - 1)
        kept = (key > bound) | ((key == bound) & (tl.cumsum(equal, 0) > dropped))
    return tl.where(kept, score, -float("inf"))


@triton.jit
def _bound_of_largest(key, count, SIZE: tl.constexpr, BITS: tl.constexpr):
    """A bound that the `count` largest keys and those equal to the least of them reach, and no others.

    It divides a range of bounds by three, with two counts in one sum, since the exchange between warps takes most of
    the time. It ends early when the bound separates exactly so many keys.
    """
    bound = tl.full([], 0, tl.uint32)
    left = tl.full([], (1 << BITS) - 1, tl.uint32)  # the bound is below bound + left
    reached = tl.full([], SIZE, tl.int32)  # by so many keys
    while (left > 1) & (reached != count):
        third = (left - 1) // 3 + 1
        counts = tl.sum((key >= bound + third).to(tl.int32) + ((key >= bound + 2 * third).to(tl.int32) << 16), 0)
        one, two = counts & 0xFFFF, counts >> 16
        left = tl.where(two >= count, left - 2 * third, third)
        reached = tl.where(two >= count, two, tl.where(one >= count, one, reached))
        bound += tl.where(two >= count, 2 * third, tl.where(one >= count, third, 0))
    return bound


@triton.jit
def _bound_of_mass(key, weight, limit, bound):
    """The largest bound whose smaller keys have a mass up to the limit, at most the largest key, and that mass.

    No key below the given bound has a mass.
    """
    left = tl.max(key, 0) - bound + 1
    below = tl.full([], 0.0, tl.float32)
    while left > 1:
        half = (left >> 1) + (left & 1)
        mass = tl.sum(tl.where(key < bound + half, weight, 0.0), 0)
        left = tl.where(mass <= limit, left - half, half)
        below = tl.where(mass <= limit, mass, below)
        bound += tl.where(mass <= limit, half, 0)
    return bound, below


@triton.jit
def _gumbel(seed, draw, segment, turn, BLOCK: tl.constexpr):
    """The noise of BLOCK ids, float32."""
    block = tl.arange(0, BLOCK // 4)
    zero = tl.zeros([BLOCK // 4], tl.uint32)
    a, b, c, d = tl.philox(
        seed,
        zero + draw.to(tl.uint32),
        block.to(tl.uint32),
        zero + segment.to(tl.uint32),
        zero + turn.to(tl.uint32),
    )
    words = tl.join(tl.join(a, c), tl.join(b, d)).reshape([BLOCK])
    uniform = tl.minimum((words.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.9999999403953552)
    # There is no log1p everywhere. rest = 1 - uniform is rounded, and -log1p(-uniform) = -log(rest) + lost / rest up to
    # the square of what was lost. That is exact for uniform >= 1 / 2, where nothing is lost; below, lost <= 2^-25 and
    # lost / rest differs from lost by at most 2^-24 of the result.
    rest = 1.0 - uniform
    lost = uniform - (1.0 - rest)
    return -tl.log(lost - tl.log(rest))
