"""The codec's activation and depthwise convolution, forward and backward, as Triton kernels for training.

The library makes several passes over memory for the activation, and its gradient of a dilated depthwise filter is slow.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
TAPS = 7


@triton.jit(do_not_specialize=["channels"])
def _snake_forward(x, alpha, out, channels, time, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(alpha + row % channels)
    here = row.to(tl.int64) * time + t
    value = tl.load(x + here, mask=t < time, other=0.0).to(tl.float32)
    s = tl.sin(a * value)
    tl.store(out + here, value + s * s / (a + 1e-9), mask=t < time)


@triton.jit(do_not_specialize=["channels"])
def _snake_backward(grad, x, alpha, dx, dalpha, channels, time, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    t = part * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(alpha + row % channels)
    here = row.to(tl.int64) * time + t
    value = tl.load(x + here, mask=t < time, other=0.0).to(tl.float32)
    g = tl.load(grad + here, mask=t < time, other=0.0).to(tl.float32)
    s, twice = tl.sin(a * value), tl.sin(2 * a * value)
    tl.store(dx + here, g * (1 + twice), mask=t < time)
    inverse = 1 / (a + 1e-9)
    slope = g * (value * twice * inverse - s * s * inverse * inverse)
    tl.store(dalpha + row * tl.num_programs(1) + part, tl.sum(slope, 0))


@triton.jit(do_not_specialize=["channels", "dilation"])
def _depthwise_forward(x, weight, bias, out, channels, time, dilation, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    channel = row % channels
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start = row.to(tl.int64) * time
    total = tl.zeros((BLOCK,), tl.float32) + tl.load(bias + channel).to(tl.float32)
    for tap in tl.static_range(TAPS):
        then = t - (TAPS - 1 - tap) * dilation
        value = tl.load(x + start + then, mask=(then >= 0) & (t < time), other=0.0)
        total += value.to(tl.float32) * tl.load(weight + channel * TAPS + tap).to(tl.float32)
    tl.store(out + start + t, total, mask=t < time)


@triton.jit(do_not_specialize=["channels", "dilation"])
def _depthwise_backward(
    grad, x, weight, dx, dweight, channels, time, dilation, TAPS: tl.constexpr, BLOCK: tl.constexpr
):
    row, part = tl.program_id(0), tl.program_id(1)
    channel = row % channels
    t = part * BLOCK + tl.arange(0, BLOCK)
    start = row.to(tl.int64) * time
    g = tl.load(grad + start + t, mask=t < time, other=0.0).to(tl.float32)
    place = dweight + (row * tl.num_programs(1) + part) * (TAPS + 1)
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in tl.static_range(TAPS):
        back = (TAPS - 1 - tap) * dilation
        later = tl.load(grad + start + t + back, mask=t + back < time, other=0.0).to(tl.float32)
        total += later * tl.load(weight + channel * TAPS + tap).to(tl.float32)
        value = tl.load(x + start + t - back, mask=(t >= back) & (t < time), other=0.0).to(tl.float32)
        tl.store(place + tap, tl.sum(g * value, 0))
    tl.store(place + TAPS, tl.sum(g, 0))  # gradient of the bias
    tl.store(dx + start + t, total, mask=t < time)


class Snake(torch.autograd.Function):
    """x + sin(alpha x)^2 / alpha. x: [batch, channels, time], alpha: [1, channels, 1]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, alpha)
        batch, channels, time = x.shape
        out = torch.empty_like(x)
        _snake_forward[(batch * channels, triton.cdiv(time, BLOCK))](x, alpha, out, channels, time, BLOCK=BLOCK)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, alpha = ctx.saved_tensors
        batch, channels, time = x.shape
        parts = triton.cdiv(time, BLOCK)
        dx = torch.empty_like(x)
        slopes = torch.empty(batch, channels, parts, device=x.device)
        grid = (batch * channels, parts)
        _snake_backward[grid](grads[0].contiguous(), x, alpha, dx, slopes, channels, time, BLOCK=BLOCK)
        return dx, slopes.sum((0, 2)).view_as(alpha)


class Depthwise(torch.autograd.Function):
    """A causal depthwise convolution of TAPS taps. x: [batch, channels, time], weight: [channels, 1, TAPS]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.dilation = dilation
        batch, channels, time = x.shape
        out = torch.empty_like(x)
        grid = (batch * channels, triton.cdiv(time, BLOCK))
        _depthwise_forward[grid](x, weight, bias, out, channels, time, dilation, TAPS=TAPS, BLOCK=BLOCK)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        batch, channels, time = x.shape
        parts = triton.cdiv(time, BLOCK)
        dx = torch.empty_like(x)
        slopes = torch.empty(batch, channels, parts, TAPS + 1, device=x.device)
        grid = (batch * channels, parts)
        _depthwise_backward[grid](
            grads[0].contiguous(), x, weight, dx, slopes, channels, time, ctx.dilation, TAPS=TAPS, BLOCK=BLOCK
        )
        slope = slopes.sum((0, 2))
        return dx, slope[:, None, :TAPS], slope[:, TAPS], None
