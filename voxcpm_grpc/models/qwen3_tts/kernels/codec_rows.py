"""The parts of the codec's decoder that are no matrix products, each in one launch."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# The annotations of Triton's ranges and constants do not describe their use in a kernel.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.models.qwen3_tts.kernels.codec_reference import Norm
from voxcpm_grpc.models.qwen3_tts.kernels.convolution import rounded

MIXED_VALUES = 4096  # values of a program of `mix_down`; with more of them a thread has too few registers


def look_up(codes: Tensor, table: Tensor, out: Tensor) -> None:
    """Computes `codec_reference.look_up` for contiguous codes."""
    streams, frames, quantizers = codes.shape
    _look_up_kernel[(streams * frames,)](
        codes,
        table,
        out,
        frames,
        out.stride(0),
        Q=quantizers,
        ENTRIES=table.shape[1],
        C=table.shape[2],
        BLOCK=triton.next_power_of_2(table.shape[2]),
    )


def depthwise_norm(past: Tensor, taps: Tensor, bias: Tensor, norm: Norm) -> Tensor:
    """Computes `codec_reference.depthwise_norm`."""
    streams, channels = past.shape[0], past.shape[2]
    samples = past.shape[1] - len(taps) + 1
    out = torch.empty(streams, samples, channels, dtype=past.dtype, device=past.device)
    _depthwise_norm_kernel[(streams * samples,)](
        past,
        taps,
        bias,
        norm.weight,
        norm.bias,
        out,
        samples,
        past.stride(0),
        norm.eps,
        C=channels,
        K=len(taps),
        BLOCK=triton.next_power_of_2(channels),
    )
    return out


def mix_down(past: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """Computes `codec_reference.mix_down`."""
    streams, channels = past.shape[0], past.shape[2]
    samples = past.shape[1] - len(taps) + 1
    out = torch.empty(streams, samples, dtype=torch.float32, device=past.device)
    columns = triton.next_power_of_2(channels)
    rows = max(1, min(64 if streams < 8 else 128, MIXED_VALUES // columns))
    _mix_down_clamped_kernel[(triton.cdiv(streams * samples, rows),)](
        past,
        taps,
        bias,
        out,
        streams * samples,
        samples,
        past.stride(0),
        C=channels,
        K=len(taps),
        ROWS=rows,
        COLUMNS=columns,
    )
    return out


# Arguments that change from step to step are not specialized: a compilation would stall every stream.
@triton.jit(do_not_specialize=["codes", "frames"])
def _look_up_kernel(
    codes,
    table,
    out,
    frames,
    out_stream,
    Q: tl.constexpr,
    ENTRIES: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(Q):
        code = tl.load(codes + row.to(tl.int64) * Q + j).to(tl.int64)
        code = tl.minimum(tl.maximum(code, 0), ENTRIES - 1)
        total += tl.load(table + (j * ENTRIES + code) * C + c, mask=c < C, other=0.0).to(tl.float32)
    where = (row // frames).to(tl.int64) * out_stream + (row % frames) * C
    tl.store(out + where + c, rounded(total, out.dtype.element_ty), mask=c < C)


@triton.jit(do_not_specialize=["samples"])
def _depthwise_norm_kernel(
    past,
    taps,
    bias,
    scale,
    shift,
    out,
    samples,
    past_stream,
    eps,
    C: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    inside = c < C
    first = past + (row // samples).to(tl.int64) * past_stream + (row % samples) * C
    y = tl.load(bias + c, mask=inside, other=0.0)
    for j in tl.static_range(K):
        x = tl.load(first + j * C + c, mask=inside, other=0.0).to(tl.float32)
        y += x * tl.load(taps + j * C + c, mask=inside, other=0.0)
    centred = tl.where(inside, y - tl.sum(y, 0) / C, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, 0) / C + eps)
    y = y * tl.load(scale + c, mask=inside, other=0.0) + tl.load(shift + c, mask=inside, other=0.0)
    tl.store(out + row.to(tl.int64) * C + c, y.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "samples"])
def _mix_down_clamped_kernel(
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
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (c < C)[None, :]
    first = (row // samples).to(tl.int64) * stride + (row % samples) * C
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for j in tl.static_range(K):
        x = tl.load(past + first[:, None] + (j * C + c)[None, :], mask=inside, other=0.0).to(tl.float32)
        total += x * tl.load(taps + j * C + c, mask=c < C, other=0.0)[None, :]
    y = tl.sum(total, 1) + tl.load(bias)
    y = tl.where(y > 1.0, 1.0, tl.where(y < -1.0, -1.0, y))  # NaN stays NaN, by which a broken stream is found
    tl.store(out + row, y, mask=row < rows)
