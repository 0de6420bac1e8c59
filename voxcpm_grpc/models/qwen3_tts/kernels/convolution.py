"""Dense causal convolutions over rows of channels, each in one launch with all that follows it up to the next one.

A convolution is a matrix product whose input, the window of each sample, is read where it lies: it is never copied. The
sums are float32; only the input of a convolution is rounded.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# The annotations of Triton's ranges and constants do not describe their use in a kernel.

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.conv.kernels import _snake_of
from voxcpm_grpc.kernels.launch.counters import counters
from voxcpm_grpc.models.qwen3_tts.kernels.codec_reference import Convolution

PROGRAMS = 96  # one for most multiprocessors
MOST_SPLITS = 16
LEAST_STEPS = 4  # of a program that shares its sum with others


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """The part of the result that one program computes: rows x columns, from `depth` input channels at a time.

    `splits` programs share the inputs of an output, and the last one adds their sums in a fixed order.
    """

    rows: int
    columns: int
    depth: int
    splits: int = 1
    warps: int = 4
    stages: int = 3


def convolve(
    past: Tensor, conv: Convolution, out: Tensor, residual: Tensor | None, keep: bool, *, tile: Tile | None = None
) -> Tensor | None:
    """Computes `codec_reference.convolve`."""
    streams, channels = past.shape[0], past.shape[2]
    samples = past.shape[1] - conv.reach
    outputs, taps, _ = conv.weight.shape
    rows = streams * samples
    _check(past, out, residual)
    y = torch.empty(streams, samples, outputs, dtype=torch.float32, device=past.device) if keep else None
    tile = tile or choose_tile(rows, outputs, channels, taps, past.element_size())
    blocks, tiles = triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.columns)
    part = conv.bias
    if tile.splits > 1:
        part = torch.empty(tile.splits, rows, outputs, dtype=torch.float32, device=past.device)
    alpha, inverse = (conv.snake.alpha, conv.snake.inverse) if conv.snake else (conv.bias, conv.bias)
    _convolve_kernel[(blocks, tiles, tile.splits)](
        past,
        conv.weight,
        conv.bias,
        conv.bias if residual is None else residual,
        conv.bias if y is None else y,
        alpha,
        inverse,
        out,
        part,
        counters(past.device, blocks * tiles) if tile.splits > 1 else conv.bias,
        rows,
        samples,
        past.stride(0),
        out.stride(0),
        conv.dilation * channels,
        C=channels,
        N=outputs,
        K=taps,
        SNAKE=conv.snake is not None,
        GELU=conv.gelu,
        RESIDUAL=residual is not None,
        KEEP=keep,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        SPLITS=tile.splits,
        PRECISION="tf32x3" if past.is_cuda and past.dtype == torch.float32 else "ieee",
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y


def choose_tile(rows: int, outputs: int, channels: int, taps: int, size: int) -> Tile:
    """The largest tile that gives a program to most multiprocessors, for inputs of `size` bytes.

    With few rows several programs share a sum.
    """
    width = _power(outputs)
    if width > outputs * 4 // 3:  # more than a quarter of the columns would be idle
        width //= 2
    widest = 64 if size == 2 else 32  # the tiles of float32 must fit into the shared memory of a small GPU, too
    depth = next((depth for depth in (64, 32) if depth <= widest and channels % depth == 0), 0)
    depth = depth or min(widest, _power(channels))
    sides = ((128, 128, 8), (64, 128, 4), (64, 64, 4))[0 if size == 2 else 2 :]
    tiles = [
        Tile(rows=height, columns=max(16, min(side, width)), depth=depth, warps=warps)
        for height, side, warps in sides
        if rows > height // 2
    ]
    tiles.append(Tile(rows=min(32, _power(rows)), columns=max(16, min(64, width)), depth=depth))
    counts = [triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.columns) for tile in tiles]
    enough = next((tile for tile, programs in zip(tiles[:-1], counts, strict=False) if programs >= PROGRAMS), None)
    if enough:
        return enough
    steps, splits = taps * triton.cdiv(channels, depth), 1
    while 2 * splits * counts[-1] <= 2 * PROGRAMS and splits < MOST_SPLITS and steps >= 2 * splits * LEAST_STEPS:
        splits *= 2
    return replace(tiles[-1], splits=splits, stages=4)  # the weights take most of the time: more loads are in flight


def _power(size: int) -> int:
    return max(16, triton.next_power_of_2(size))  # a matrix product is at least 16 wide


def _check(past: Tensor, out: Tensor, residual: Tensor | None) -> None:
    """Raise ValueError unless rows and channels follow each other without gaps in each stream."""
    for x in (past, out):
        if x.stride(2) != 1 or x.stride(1) != x.shape[2]:
            raise ValueError(f"rows must be contiguous, the strides of {tuple(x.shape)} are {x.stride()}")
    if residual is not None and not residual.is_contiguous():
        raise ValueError("the residual must be contiguous")


@triton.jit
def rounded(x, kind: tl.constexpr):
    """x in a dtype. What float16 cannot hold becomes its largest number; NaN stays NaN."""
    if kind == tl.float16:
        x = tl.where(x > 65504.0, 65504.0, x)
        x = tl.where(x < -65504.0, -65504.0, x)
    return x.to(kind)


# Arguments that change from step to step are not specialized: a compilation would stall every stream.
# Convolutions that differ in their dilation share a variant: `gap` elements are between two taps.
@triton.jit(do_not_specialize=["rows", "samples"])
def _convolve_kernel(
    past,
    weight,
    bias,
    residual,
    kept,
    alpha,
    inverse,
    out,
    part,
    counters,
    rows,
    samples,
    past_stream,
    out_stream,
    gap,
    C: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    SNAKE: tl.constexpr,
    GELU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    BLOCKS: tl.constexpr = (C + DEPTH - 1) // DEPTH
    STEPS: tl.constexpr = K * BLOCKS
    SHARE: tl.constexpr = (STEPS + SPLITS - 1) // SPLITS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    stream, sample = (row // samples).to(tl.int64), row % samples
    present, column = row < rows, n < N
    c = tl.arange(0, DEPTH)
    a_at = past + (stream * past_stream + sample * C)[:, None] + c[None, :]
    b_at = weight + n[:, None] * (K * C) + c[None, :]
    begin = tl.program_id(2) * SHARE
    y = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in tl.range(begin, tl.minimum(begin + SHARE, STEPS)):
        tap, first = step // BLOCKS, step % BLOCKS * DEPTH
        if C % DEPTH == 0:
            a = tl.load(a_at + (tap * gap + first), mask=present[:, None], other=0.0)
            b = tl.load(b_at + (tap * C + first), mask=column[:, None], other=0.0)
        else:
            inner = (first + c < C)[None, :]
            a = tl.load(a_at + (tap * gap + first), mask=present[:, None] & inner, other=0.0)
            b = tl.load(b_at + (tap * C + first), mask=column[:, None] & inner, other=0.0)
        y = tl.dot(a, tl.trans(b), y, input_precision=PRECISION)
    inside = present[:, None] & column[None, :]
    flat = row.to(tl.int64)[:, None] * N + n[None, :]
    if SPLITS > 1:
        # The last program of an output adds all parts in a fixed order, so the sum does not depend on timing.
        tl.store(part + tl.program_id(2).to(tl.int64) * rows * N + flat, y, mask=inside)
        tl.debug_barrier()
        counter = counters + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        if tl.atomic_add(counter, 1, sem="acq_rel") < SPLITS - 1:
            return
        tl.store(counter, 0)
        y = tl.zeros([ROWS, COLUMNS], tl.float32)
        for split in tl.static_range(SPLITS):
            y += tl.load(part + split * rows * N + flat, mask=inside, other=0.0, cache_modifier=".cg")
    y += tl.load(bias + n, mask=column, other=0.0)[None, :]
    if RESIDUAL:
        y += tl.load(residual + flat, mask=inside, other=0.0)
    if KEEP:
        tl.store(kept + flat, y, mask=inside)
    kind = out.dtype.element_ty
    if SNAKE:
        a = tl.load(alpha + n, mask=column, other=0.0)[None, :]
        y = _snake_of(y, a, tl.load(inverse + n, mask=column, other=0.0)[None, :], kind == tl.float16)
    if GELU:
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    where = stream * out_stream + sample * N
    tl.store(out + where[:, None] + n[None, :], rounded(y, kind), mask=inside)
