"""Philox and Box-Muller in one launch. Gives the values of the plain version, `layers.noise.GaussianNoise`."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def gaussian(seed: Tensor, turn: Tensor, segment: Tensor, step: Tensor, size: int) -> Tensor:
    """Standard normal values, float32 [b, size], for int64 coordinates [b]. size is a multiple of 4."""
    out = torch.empty(seed.shape[0], size, dtype=torch.float32, device=seed.device)
    blocks = size // 4
    _gaussian_kernel[(seed.shape[0],)](seed, turn, segment, step, out, blocks, triton.next_power_of_2(blocks))
    return out


@triton.jit
def _gaussian_kernel(seed, turn, segment, step, out, blocks, BLOCKS: tl.constexpr):
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    zero = tl.zeros([BLOCKS], tl.uint32)
    a, b, c, d = tl.philox(
        tl.load(seed + row),
        block.to(tl.uint32),
        zero + tl.load(step + row).to(tl.uint32),
        zero + tl.load(segment + row).to(tl.uint32),
        zero + tl.load(turn + row).to(tl.uint32),
    )
    at = out + row * blocks * 4 + block * 4
    inside = block < blocks
    for pair in tl.static_range(2):
        first, second = (a, b) if pair == 0 else (c, d)
        radius = tl.sqrt(-2.0 * tl.log((first.to(tl.float32) + 1.0) * 2.3283064365386963e-10))
        angle = 6.283185307179586 * ((second.to(tl.float32) + 1.0) * 2.3283064365386963e-10)
        tl.store(at + 2 * pair, radius * tl.cos(angle), mask=inside)
        tl.store(at + 2 * pair + 1, radius * tl.sin(angle), mask=inside)
