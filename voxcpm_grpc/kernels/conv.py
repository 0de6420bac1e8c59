"""Streaming convolutions over rows of channels: what an audio decoder needs, with activations and residuals inside.

A module reads a window that holds what it remembers before what is new, so it needs no concatenation and no case for
the first samples. The sum of a residual unit stays float32; only what enters a convolution is rounded to its type.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from voxcpm_grpc.kernels.conv_reference import Depthwise, Pointwise, Snake
from voxcpm_grpc.kernels.launch import launch_next, overlaps, wait

BLOCK = 1024  # elements that one program copies


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program computes: rows x columns of the result, `depth` channels of the input at a time."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3


def depthwise(past: Tensor, conv: Depthwise, *, tile: Tile | None = None) -> Tensor:
    """What `conv_reference.depthwise` says."""
    streams, channels = past.shape[0], past.shape[2]
    samples = past.shape[1] - conv.reach
    out = torch.empty(streams, samples, channels, dtype=past.dtype, device=past.device)
    tile = tile or _depthwise_tile(streams * samples, channels)
    _depthwise_kernel[(triton.cdiv(streams * samples, tile.rows), triton.cdiv(channels, tile.columns))](
        past,
        conv.taps,
        conv.bias,
        *_snake(conv.snake, conv.bias),
        out,
        streams * samples,
        samples,
        past.stride(0),
        C=channels,
        K=len(conv.taps),
        DILATION=conv.dilation,
        SNAKE=conv.snake is not None,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        num_warps=tile.warps,
        **_chained(out.device),
    )
    return out


def pointwise(
    x: Tensor, conv: Pointwise, out: Tensor, residual: Tensor | None, keep: bool, *, tile: Tile | None = None
) -> Tensor | None:
    """What `conv_reference.pointwise` says."""
    streams, samples, channels = x.shape
    rows, columns = streams * samples, len(conv.bias)
    _check(x, out, residual)
    y = torch.empty(streams, samples, columns, device=x.device) if keep else None
    tile = tile or _pointwise_tile(rows, columns, channels)
    _pointwise_kernel[(triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns))](
        x,
        conv.weight,
        *_ending(conv, residual, y),
        out,
        rows,
        samples,
        x.stride(0),
        x.stride(1),
        out.stride(0),
        C=channels,
        N=columns,
        RESIDUAL=residual is not None,
        KEEP=keep,
        AFFINE=conv.affine is not None,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        LINES=_lines(tile.columns * channels),
        num_warps=tile.warps,
        num_stages=tile.stages,
        **_chained(out.device),
    )
    return y


def depthwise_pointwise(
    past: Tensor,
    first: Depthwise,
    second: Pointwise,
    out: Tensor,
    residual: Tensor | None,
    keep: bool,
    *,
    tile: Tile | None = None,
) -> Tensor | None:
    """What `conv_reference.depthwise_pointwise` says, in one launch.

    Every column of programs computes the depthwise part again: for channels that fit one or two columns.
    """
    streams, channels = past.shape[0], past.shape[2]
    samples, columns = past.shape[1] - first.reach, len(second.bias)
    rows = streams * samples
    _check(past, out, residual)
    y = torch.empty(streams, samples, columns, device=past.device) if keep else None
    tile = tile or _fused_tile(rows, columns, channels)
    _depthwise_pointwise_kernel[(triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns))](
        past,
        first.taps,
        first.bias,
        *_snake(first.snake, first.bias),
        second.weight,
        *_ending(second, residual, y),
        out,
        rows,
        samples,
        past.stride(0),
        out.stride(0),
        C=channels,
        N=columns,
        K=len(first.taps),
        DILATION=first.dilation,
        SNAKE=first.snake is not None,
        RESIDUAL=residual is not None,
        KEEP=keep,
        AFFINE=second.affine is not None,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        LINES=_lines(tile.columns * channels),
        ASM=past.device.type == "cuda",
        num_warps=tile.warps,
        **_chained(out.device),
    )
    return y


def mix_down(past: Tensor, taps: Tensor, bias: Tensor, *, tile: Tile | None = None) -> Tensor:
    """What `conv_reference.mix_down` says."""
    streams, channels = past.shape[0], past.shape[2]
    samples = past.shape[1] - len(taps) + 1
    out = torch.empty(streams, samples, device=past.device)
    tile = tile or Tile(64 if streams < 8 else 128, triton.next_power_of_2(channels), 1)
    _mix_down_kernel[(triton.cdiv(streams * samples, tile.rows),)](
        past,
        taps,
        bias,
        out,
        streams * samples,
        samples,
        past.stride(0),
        C=channels,
        K=len(taps),
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        num_warps=tile.warps,
        **_chained(out.device),
    )
    return out


def recall(state: Tensor, slot: Tensor, frames: Tensor, windows: Tensor, runs: Tensor, first: int) -> None:
    """What `conv_reference.recall` says, for contiguous frames."""
    blocks, count = len(runs), frames[0].numel()
    _recall_kernel[(blocks + triton.cdiv(count, BLOCK), len(slot))](
        state,
        slot,
        frames,
        windows,
        runs,
        blocks,
        count,
        first,
        state.stride(0),
        windows.stride(0),
        BLOCK=BLOCK,
        **_chained(state.device),
    )


def remember(state: Tensor, slot: Tensor, windows: Tensor, runs: Tensor) -> None:
    """What `conv_reference.remember` says."""
    _remember_kernel[(len(runs), len(slot))](
        state, slot, windows, runs, state.stride(0), windows.stride(0), BLOCK=BLOCK, **_chained(state.device)
    )


def _chained(device: torch.device) -> dict[str, bool]:
    overlap = overlaps(device)
    return {"OVERLAP": overlap} | ({"launch_pdl": True} if overlap else {})


def _snake(snake: Snake | None, unused: Tensor) -> tuple[Tensor, Tensor]:
    return (snake.alpha, snake.inverse) if snake else (unused, unused)


def _ending(conv: Pointwise, residual: Tensor | None, y: Tensor | None) -> tuple[Tensor, ...]:
    """The arguments of `_finish`; a tensor that is absent is never read."""
    absent = conv.bias
    scale, shift = conv.affine or (absent, absent)
    residual, y = (absent if x is None else x for x in (residual, y))
    return conv.bias, residual, y, scale, shift, conv.snake.alpha, conv.snake.inverse


def _check(x: Tensor, out: Tensor, residual: Tensor | None) -> None:
    """The kernels walk rows of contiguous channels; results follow one another without gaps within a stream."""
    if x.stride(2) != 1 or out.stride(2) != 1 or out.stride(1) != out.shape[2]:
        raise ValueError(f"channels must be contiguous, the strides are {x.stride()} and {out.stride()}")
    if residual is not None and not residual.is_contiguous():
        raise ValueError("the residual must be contiguous")


# The tiles below were measured on an H200; any power of two is right, none narrower than a product takes, 16.


def _depthwise_tile(rows: int, columns: int) -> Tile:
    few = rows * columns < 1 << 19
    width = min(64 if few else 128, triton.next_power_of_2(columns))
    return Tile(512 // width if few else 2048 // width, width, 1)


def _pointwise_tile(rows: int, columns: int, channels: int) -> Tile:
    """The largest tile of which there are enough: two for each multiprocessor, or one for every third."""
    width, whole = _block(columns), _block(channels)
    if rows <= 16:
        return Tile(16, min(64, width), min(128, whole), stages=4)
    depth = min(128 if channels >= 2048 and rows <= 256 else 64, whole)
    for height, side, programs in ((64, 128, 264), (64, 64, 48), (32, 32, 48)):
        if triton.cdiv(rows, height) * triton.cdiv(columns, side) >= programs:
            return Tile(height, min(side, width), depth, stages=4 if rows * columns < 1 << 20 and depth < 128 else 3)
    return Tile(16, min(32, width), min(128, whole), stages=4)


def _fused_tile(rows: int, columns: int, channels: int) -> Tile:
    width, whole = min(128, _block(columns)), _block(channels)
    if rows * columns < 1 << 19:
        return Tile(32 if width > 32 else 64, width, min(128, whole), warps=8 if width > 64 else 4)
    return Tile(64, width, min(64, whole))


def _lines(elements: int) -> int:
    """Cache lines worth asking for early: a power of two, no more than a program fetches while it waits."""
    return min(1024, 1 << max(0, (elements // 64).bit_length() - 1))


def _block(size: int) -> int:
    return max(16, triton.next_power_of_2(size))  # no product is narrower


@triton.jit
def _snake_of(x, alpha, inverse, HALF: tl.constexpr):
    """x + sin(alpha x)^2 * inverse, within 2e-6 of |x| where the result is rounded to HALF precision: the device's own
    sine is cheap. Else within 3e-7 / alpha while alpha x stays below 1e6: the square of a sine repeats every pi, so a
    polynomial over one period is enough."""
    z = x * alpha
    if HALF:
        sine = libdevice.fast_sinf(z)
        return tl.fma(sine * sine, inverse, x)  # pyright: ignore[reportOperatorIssue]
    else:  # noqa: RET505 (the branch must be a branch for the compiler)
        k = (z * 0.3183098861837907 + 12582912.0) - 12582912.0  # the nearest integer: adding 1.5 * 2^23 rounds to it
        r = tl.fma(k, 8.742278012618954e-08, tl.fma(k, -3.1415927410125732, z))  # pi in two parts
        u = r * r
        q = tl.fma(u, -3.540443230e-06, 1.387141478e-04)
        q = tl.fma(u, q, -3.170759321e-03)
        q = tl.fma(u, q, 4.444128695e-02)
        q = tl.fma(u, q, -3.333321377e-01)
        q = tl.fma(u, q, 9.999998491e-01)
        return tl.fma(u * q, inverse, x)


@triton.jit
def _finish(
    y,
    bias,
    residual,
    kept,
    scale,
    shift,
    alpha,
    inverse,
    out,
    row,
    n,
    where,
    rows,
    N: tl.constexpr,
    RESIDUAL: tl.constexpr,
    KEEP: tl.constexpr,
    AFFINE: tl.constexpr,
):
    """From sums of products [rows, columns] to what is kept, at `row`, and what the next module reads, at `where`."""
    column = n < N
    inside = (row < rows)[:, None] & column[None, :]
    flat = row.to(tl.int64)[:, None] * N + n[None, :]
    y += tl.load(bias + n, mask=column, other=0.0)[None, :]
    if RESIDUAL:
        y += tl.load(residual + flat, mask=inside, other=0.0)
    if KEEP:
        tl.store(kept + flat, y, mask=inside)
    if AFFINE:
        y = y * tl.load(scale + n, mask=column, other=0.0)[None, :]
        y += tl.load(shift + n, mask=column, other=0.0)[None, :]
    a = tl.load(alpha + n, mask=column, other=0.0)[None, :]
    i = tl.load(inverse + n, mask=column, other=0.0)[None, :]
    kind = out.dtype.element_ty
    tl.store(out + where[:, None] + n[None, :], _snake_of(y, a, i, kind == tl.float16).to(kind), mask=inside)


@triton.jit
def _fetch(weight, SIZE: tl.constexpr, SHARE: tl.constexpr, LINES: tl.constexpr, OVERLAP: tl.constexpr):
    """Ask for what this column of programs needs of the weights while the kernel before still runs: none writes them.
    `SHARE` elements of `SIZE`, of which the first `LINES` lines of the cache are asked for."""
    if OVERLAP and tl.program_id(0) == 0:
        at = (tl.program_id(1) * SHARE + tl.arange(0, LINES) * 64) % SIZE
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [weight + at], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def _settled(x, ASM: tl.constexpr):
    """x, which the compiler must take as it stands: else it moves the exchange between threads that a product needs
    from the one result to each of the seven inputs."""
    if ASM and x.dtype == tl.float16:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.float16, is_pure=False, pack=2)
    return x


@triton.jit
def _depthwise_of(
    past,
    taps,
    bias,
    alpha,
    inverse,
    first,
    row,
    rows,
    c,
    C: tl.constexpr,
    K: tl.constexpr,
    DILATION: tl.constexpr,
    SNAKE: tl.constexpr,
):
    """The depthwise convolution at channels c of the samples whose oldest input stands at `first`: float32."""
    column = c < C
    inside = (row < rows)[:, None] & column[None, :]
    h = tl.zeros([row.shape[0], c.shape[0]], tl.float32) + tl.load(bias + c, mask=column, other=0.0)[None, :]
    for j in tl.static_range(K):
        x = tl.load(past + first[:, None] + (j * DILATION * C + c)[None, :], mask=inside, other=0.0).to(tl.float32)
        h += x * tl.load(taps + j * C + c, mask=column, other=0.0)[None, :]
    if SNAKE:
        a = tl.load(alpha + c, mask=column, other=0.0)[None, :]
        h = _snake_of(h, a, tl.load(inverse + c, mask=column, other=0.0)[None, :], past.dtype.element_ty == tl.float16)
    return h


@triton.jit
def _depthwise_kernel(
    past,
    taps,
    bias,
    alpha,
    inverse,
    out,
    rows,
    samples,
    stride,
    C: tl.constexpr,
    K: tl.constexpr,
    DILATION: tl.constexpr,
    SNAKE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = (row // samples).to(tl.int64) * stride + (row % samples) * C
    h = _depthwise_of(past, taps, bias, alpha, inverse, first, row, rows, c, C, K, DILATION, SNAKE)
    inside = (row < rows)[:, None] & (c < C)[None, :]
    tl.store(out + row.to(tl.int64)[:, None] * C + c[None, :], h.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _pointwise_kernel(
    x,
    weight,
    bias,
    residual,
    kept,
    scale,
    shift,
    alpha,
    inverse,
    out,
    rows,
    samples,
    x_stream,
    x_row,
    out_stream,
    C: tl.constexpr,
    N: tl.constexpr,
    RESIDUAL: tl.constexpr,
    KEEP: tl.constexpr,
    AFFINE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    LINES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    _fetch(weight, N * C, COLUMNS * C, LINES, OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    stream, sample = (row // samples).to(tl.int64), row % samples
    c = tl.arange(0, DEPTH)
    a_at = x + (stream * x_stream + sample * x_row)[:, None] + c[None, :]
    b_at = weight + n[:, None] * C + c[None, :]
    y = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, C, DEPTH):
        if C % DEPTH == 0:
            a = tl.load(a_at + begin, mask=(row < rows)[:, None], other=0.0)
            b = tl.load(b_at + begin, mask=(n < N)[:, None], other=0.0)
        else:
            a = tl.load(a_at + begin, mask=(row < rows)[:, None] & (begin + c < C)[None, :], other=0.0)
            b = tl.load(b_at + begin, mask=(n < N)[:, None] & (begin + c < C)[None, :], other=0.0)
        y = tl.dot(a, tl.trans(b), y, input_precision="ieee")
    where = stream * out_stream + sample * N
    _finish(y, bias, residual, kept, scale, shift, alpha, inverse, out, row, n, where, rows, N, RESIDUAL, KEEP, AFFINE)


@triton.jit
def _depthwise_pointwise_kernel(
    past,
    taps,
    taps_bias,
    taps_alpha,
    taps_inverse,
    weight,
    bias,
    residual,
    kept,
    scale,
    shift,
    alpha,
    inverse,
    out,
    rows,
    samples,
    past_stream,
    out_stream,
    C: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    DILATION: tl.constexpr,
    SNAKE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    KEEP: tl.constexpr,
    AFFINE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    ASM: tl.constexpr,
    LINES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    _fetch(weight, N * C, COLUMNS * C, LINES, OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    stream, sample = (row // samples).to(tl.int64), row % samples
    first = stream * past_stream + sample * C
    y = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in tl.range(0, C, DEPTH, num_stages=1):
        c = begin + tl.arange(0, DEPTH)
        b = tl.load(weight + n[:, None] * C + c[None, :], mask=(n < N)[:, None] & (c < C)[None, :], other=0.0)
        h = _depthwise_of(past, taps, taps_bias, taps_alpha, taps_inverse, first, row, rows, c, C, K, DILATION, SNAKE)
        h = _settled(h.to(weight.dtype.element_ty), ASM)
        y = tl.dot(h, tl.trans(b), y, input_precision="ieee")
    where = stream * out_stream + sample * N
    _finish(y, bias, residual, kept, scale, shift, alpha, inverse, out, row, n, where, rows, N, RESIDUAL, KEEP, AFFINE)


@triton.jit
def _mix_down_kernel(
    past,
    taps,
    bias,
    out,
    rows,
    samples,
    stride,
    C: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (c < C)[None, :]
    first = (row // samples).to(tl.int64) * stride + (row % samples) * C
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for j in tl.static_range(K):
        x = tl.load(past + first[:, None] + (j * C + c)[None, :], mask=inside, other=0.0).to(tl.float32)
        total += x * tl.load(taps + j * C + c, mask=c < C, other=0.0)[None, :]
    y = tl.sum(total, 1) + tl.load(bias)
    tl.store(out + row, 1.0 - 2.0 / (tl.exp(2.0 * y) + 1.0), mask=row < rows)


@triton.jit
def _recall_kernel(
    state,
    slot,
    frames,
    windows,
    runs,
    blocks,
    count,
    first,
    state_stride,
    window_stride,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    wait(OVERLAP)
    block, stream = tl.program_id(0), tl.program_id(1).to(tl.int64)
    e = tl.arange(0, BLOCK)
    if block < blocks:
        run = runs + block * 4
        old = state + tl.load(slot + stream) * state_stride + tl.load(run)
        inside = e < tl.load(run + 3)
        tl.store(windows + stream * window_stride + tl.load(run + 1) + e, tl.load(old + e, mask=inside), mask=inside)
    else:
        e += (block - blocks) * BLOCK
        new = tl.load(frames + stream * count + e, mask=e < count)
        tl.store(windows + stream * window_stride + first + e, new.to(windows.dtype.element_ty), mask=e < count)


@triton.jit
def _remember_kernel(
    state,
    slot,
    windows,
    runs,
    state_stride,
    window_stride,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    wait(OVERLAP)
    stream = tl.program_id(1).to(tl.int64)
    run = runs + tl.program_id(0) * 4
    e = tl.arange(0, BLOCK)
    inside = e < tl.load(run + 3)
    x = tl.load(windows + stream * window_stride + tl.load(run + 2) + e, mask=inside)
    tl.store(state + tl.load(slot + stream) * state_stride + tl.load(run) + e, x, mask=inside)
