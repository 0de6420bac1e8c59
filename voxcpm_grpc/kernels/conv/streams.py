"""Streaming convolutions over rows of channels, with activations and residuals fused in, for an audio decoder.

A module reads a window that holds its past input in front of its new input, so it needs no concatenation and no special
case for the first samples. The sum of a residual unit stays float32; only the input of a convolution is rounded.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from voxcpm_grpc.kernels.conv.kernels import (
    depthwise_kernel,
    depthwise_pointwise_kernel,
    mix_down_kernel,
    pointwise_kernel,
)
from voxcpm_grpc.kernels.conv.reference import Depthwise, Pointwise, Snake

MIXED_VALUES = 4096  # values of a program of `mix_down`; with more of them a thread has too few registers


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of the result that one program computes: rows x columns, from `depth` input channels at a time."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3


def depthwise(past: Tensor, conv: Depthwise, *, tile: Tile | None = None) -> Tensor:
    """Computes `reference.depthwise`."""
    streams, channels = past.shape[0], past.shape[2]
    samples = past.shape[1] - conv.reach
    out = torch.empty(streams, samples, channels, dtype=past.dtype, device=past.device)
    tile = tile or _depthwise_tile(streams * samples, channels)
    depthwise_kernel[(triton.cdiv(streams * samples, tile.rows), triton.cdiv(channels, tile.columns))](
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
    )
    return out


def pointwise(
    x: Tensor, conv: Pointwise, out: Tensor, residual: Tensor | None, keep: bool, *, tile: Tile | None = None
) -> Tensor | None:
    """Computes `reference.pointwise`."""
    streams, samples, channels = x.shape
    rows, columns = streams * samples, len(conv.bias)
    _check(x, out, residual)
    y = torch.empty(streams, samples, columns, device=x.device) if keep else None
    tile = tile or _pointwise_tile(rows, columns, channels, active=conv.snake is not None)
    pointwise_kernel[(triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns))](
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
        ACTIVE=conv.snake is not None,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
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
    """Computes `reference.depthwise_pointwise` in one launch.

    Every column of programs repeats the depthwise part, so this pays for channels that fit into one or two columns.
    """
    streams, channels = past.shape[0], past.shape[2]
    samples, columns = past.shape[1] - first.reach, len(second.bias)
    rows = streams * samples
    _check(past, out, residual)
    y = torch.empty(streams, samples, columns, device=past.device) if keep else None
    tile = tile or _fused_tile(rows, columns, channels)
    depthwise_pointwise_kernel[(triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns))](
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
        ACTIVE=second.snake is not None,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        ASM=past.device.type == "cuda",
        num_warps=tile.warps,
    )
    return y


def mix_down(past: Tensor, taps: Tensor, bias: Tensor, *, tile: Tile | None = None) -> Tensor:
    """Computes `reference.mix_down`."""
    streams, channels = past.shape[0], past.shape[2]
    samples = past.shape[1] - len(taps) + 1
    out = torch.empty(streams, samples, device=past.device)
    columns = triton.next_power_of_2(channels)
    tile = tile or Tile(min(64 if streams < 8 else 128, MIXED_VALUES // columns), columns, 1)
    mix_down_kernel[(triton.cdiv(streams * samples, tile.rows),)](
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
    )
    return out


def _snake(snake: Snake | None, unused: Tensor) -> tuple[Tensor, Tensor]:
    return (snake.alpha, snake.inverse) if snake else (unused, unused)


def _ending(conv: Pointwise, residual: Tensor | None, y: Tensor | None) -> tuple[Tensor, ...]:
    """The arguments of `_finish`. The tensor passed for an absent one is not read."""
    absent = conv.bias
    scale, shift = conv.affine or (absent, absent)
    residual, y = (absent if x is None else x for x in (residual, y))
    return conv.bias, residual, y, scale, shift, *_snake(conv.snake, absent)


def _check(x: Tensor, out: Tensor, residual: Tensor | None) -> None:
    """Raise ValueError unless channels are contiguous and the rows of a result follow each other without gaps."""
    if x.stride(2) != 1 or out.stride(2) != 1 or out.stride(1) != out.shape[2]:
        raise ValueError(f"channels must be contiguous, the strides are {x.stride()} and {out.stride()}")
    if residual is not None and not residual.is_contiguous():
        raise ValueError("the residual must be contiguous")


# The tiles below were measured on an H200. Every power of two from 16 up, the minimum of a matrix product, is correct.


def _depthwise_tile(rows: int, columns: int) -> Tile:
    few = rows * columns < 1 << 19
    width = min(64 if few else 128, triton.next_power_of_2(columns))
    return Tile(512 // width if few else 2048 // width, width, 1)


def _pointwise_tile(rows: int, columns: int, channels: int, *, active: bool) -> Tile:
    """The largest tile that still gives enough programs: two for each multiprocessor, or one for every third.

    Without an activation another kernel follows, which only Hopper has: its shared memory holds a tile of 256 columns.
    """
    width, whole = _block(columns), _block(channels)
    if rows <= 16:
        return Tile(16, min(64, width), min(128, whole), stages=4)
    if not active and rows >= 3072 and columns % 256 == 0 and channels >= 1024:
        return Tile(128, 256, 64, warps=8)
    if channels >= 4096 and rows <= 32:
        return Tile(32, min(32, width), 128, stages=5)
    if channels >= 4096 and 128 < rows <= 256:
        return Tile(64, min(128, width), 64, stages=4)
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


def _block(size: int) -> int:
    return max(16, triton.next_power_of_2(size))  # a matrix product is at least 16 wide
