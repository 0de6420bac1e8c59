"""Philox and Box-Muller in one launch. Gives the values of the plain version, `layers.noise.SlotNoise`."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def gaussian(
    slot: Tensor,
    seed: Tensor,
    turn: Tensor,
    segment: Tensor,
    step: Tensor,
    temperature: Tensor,
    frames: int,
    channels: int,
) -> Tensor:
    """The noise of these slots [b], float32 [b, frames, channels], of which there are a multiple of 4.

    The coordinates int64 [n] and the factors float32 [n] are those of all slots.
    """
    points = seed, turn, segment, step
    strides = seed.stride(0), temperature.stride(0)
    if any(point.stride(0) != strides[0] for point in points):
        raise ValueError("all coordinates must have the same stride")
    out = torch.empty(len(slot), frames, channels, dtype=torch.float32, device=slot.device)
    blocks = frames * channels // 4
    size = triton.next_power_of_2(blocks)
    _gaussian_kernel[(len(slot),)](slot, *points, temperature, out, *strides, frames, channels, blocks, BLOCKS=size)
    return out


# The alignment of views is not specialized: a compilation would stall every stream.
@triton.jit(do_not_specialize=["slot"])
def _gaussian_kernel(
    slot,
    seed,
    turn,
    segment,
    step,
    temperature,
    out,
    stride,
    temperature_stride,
    frames,
    channels,
    blocks,
    BLOCKS: tl.constexpr,
):
    stream = tl.program_id(0)
    row = tl.load(slot + stream)
    factor = tl.load(temperature + row * temperature_stride)
    block = tl.arange(0, BLOCKS)
    zero = tl.zeros([BLOCKS], tl.uint32)
    a, b, c, d = tl.philox(
        tl.load(seed + row * stride),
        block.to(tl.uint32),
        zero + tl.load(step + row * stride).to(tl.uint32),
        zero + tl.load(segment + row * stride).to(tl.uint32),
        zero + tl.load(turn + row * stride).to(tl.uint32),
    )
    at = out + stream * blocks * 4
    inside = block < blocks
    for pair in tl.static_range(2):
        first, second = (a, b) if pair == 0 else (c, d)
        radius = tl.sqrt(-2.0 * tl.log((first.to(tl.float32) + 1.0) * 2.3283064365386963e-10))
        angle = 6.283185307179586 * ((second.to(tl.float32) + 1.0) * 2.3283064365386963e-10)
        for part in tl.static_range(2):
            value = radius * (tl.cos(angle) if part == 0 else tl.sin(angle)) * factor
            drawn = block * 4 + 2 * pair + part  # the noise is drawn channel by channel
            tl.store(at + drawn % frames * channels + drawn // frames, value, mask=inside)
