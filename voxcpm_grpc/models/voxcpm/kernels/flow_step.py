"""The parts of an evaluation of the diffusion transformer around its layers: input rows and Euler step.

Dimensions: b streams, P frames of a patch, D latent channels, e hidden size, n tokens of a sequence: 2 P of patches,
and 3 before them, or 1 if there is one mu token.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import chained, launch_next, wait
from voxcpm_grpc.kernels.rows.padded_rows import empty_rows

COLUMNS = 128  # channels of the hidden size that a program writes or reads at a time
MAX_FRAMES = 6  # frames of a patch: two patches and three more tokens fit into a tile of 16


def flow_rows(
    x: Tensor, weight: Tensor, bias: Tensor, mu: Tensor, time: Tensor, condition: Tensor
) -> tuple[Tensor, Tensor]:
    """Computes `reference.flow_rows`, and partial sums of squares of its rows, float32 [parts, 2 b n]."""
    streams, frames, latents = x.shape
    if frames > MAX_FRAMES or not all(part.is_contiguous() for part in (x, weight, bias, mu, time, condition)):
        raise ValueError(f"patches have {frames} frames, at most {MAX_FRAMES}, and everything must be contiguous")
    hidden, first = len(weight), 1 if mu.shape[1] == 1 else 3
    tokens = first + 2 * frames
    out = empty_rows(weight, tokens * 2 * streams, hidden).view(tokens, 2 * streams, hidden)
    parts = triton.cdiv(hidden, COLUMNS)
    squares = torch.empty(parts, 2 * streams * tokens, dtype=torch.float32, device=x.device)
    _flow_rows_kernel[(streams, parts)](
        x,
        weight,
        bias,
        mu,
        time,
        condition,
        out,
        squares,
        streams,
        FIRST=first,
        FRAMES=frames,
        LATENTS=latents,
        HIDDEN=hidden,
        COLUMNS=COLUMNS,
        BLOCK=max(16, triton.next_power_of_2(latents)),
        **chained(x.device),
    )
    return out, squares


def flow_step(
    rows: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor, x: Tensor, sizes: Tensor, i: int, cfg: Tensor
) -> Tensor:
    """Computes `reference.flow_step`."""
    streams, frames, latents = x.shape
    if frames > MAX_FRAMES or not all(part.is_contiguous() for part in (rows, norm, weight, bias, x, sizes, cfg)):
        raise ValueError(f"patches have {frames} frames, at most {MAX_FRAMES}, and everything must be contiguous")
    out = torch.empty_like(x)
    _flow_step_kernel[(streams,)](
        rows,
        norm,
        eps,
        weight,
        bias,
        x,
        sizes,
        i,
        cfg,
        out,
        streams,
        FRAMES=frames,
        LATENTS=latents,
        HIDDEN=weight.shape[1],
        COLUMNS=COLUMNS,
        BLOCK=max(16, triton.next_power_of_2(latents)),
        **chained(x.device),
    )
    return out


# The alignment of views and the count of streams are not specialized: a compilation would stall every stream.
@triton.jit(do_not_specialize=["time", "streams"])
def _flow_rows_kernel(
    x,
    weight,
    bias,
    mu,
    time,
    condition,
    out,
    squares,
    streams,
    FIRST: tl.constexpr,
    FRAMES: tl.constexpr,
    LATENTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    TOKENS: tl.constexpr = FIRST + 2 * FRAMES
    # So many of the first tokens are mu tokens; the last of the first ones has the time.
    MU: tl.constexpr = (FIRST + 1) // 2
    launch_next(OVERLAP)
    stream = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < HIDDEN
    d = tl.arange(0, BLOCK)
    token = tl.arange(0, 16)
    w = tl.load(
        weight + column[None, :] * LATENTS + d[:, None], mask=known[None, :] & (d < LATENTS)[:, None], other=0.0
    )
    b = tl.load(bias + column, mask=known, other=0.0).to(tl.float32)
    wait(OVERLAP)
    frame = token - (FIRST + FRAMES)  # the new patch has frames from 0 on, the previous one has negative ones
    noisy = (frame >= 0) & (frame < FRAMES)
    before = (token >= FIRST) & (frame < 0)
    where = (stream * FRAMES + frame)[:, None] * LATENTS + d[None, :]
    y = tl.load(x + where, mask=noisy[:, None] & (d < LATENTS)[None, :], other=0.0).to(w.dtype)
    lifted = tl.dot(y, w, input_precision="ieee") + b[None, :]
    fixed = tl.load(
        condition + (stream * FRAMES + token - FIRST)[:, None] * HIDDEN + column[None, :],
        mask=before[:, None] & known[None, :],
        other=0.0,
    )
    fixed += tl.load(time + column, mask=known, other=0.0)[None, :] * (token == FIRST - 1)[:, None].to(w.dtype)
    hidden = tl.load(
        mu + (stream * MU + token)[:, None] * HIDDEN + column[None, :],
        mask=(token < MU)[:, None] & known[None, :],
        other=0.0,
    )
    value = tl.where(noisy[:, None], lifted.to(w.dtype), fixed)
    inside = token < TOKENS
    for half in tl.static_range(2):
        result = value + hidden if half == 0 else value
        row = (token * 2 + half) * streams + stream
        tl.store(out + row[:, None] * HIDDEN + column[None, :], result, mask=inside[:, None] & known[None, :])
        wide = tl.where(known[None, :], result.to(tl.float32), 0.0)
        tl.store(squares + tl.program_id(1) * (2 * streams * TOKENS) + row, tl.sum(wide * wide, 1), mask=inside)


@triton.jit(do_not_specialize=["i", "streams"])
def _flow_step_kernel(
    rows,
    norm,
    eps,
    weight,
    bias,
    x,
    sizes,
    i,
    cfg,
    out,
    streams,
    FRAMES: tl.constexpr,
    LATENTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    stream = tl.program_id(0)
    entry = tl.arange(0, 16)  # conditional frames begin at 0, unconditional frames at 8
    frame = entry % 8
    present = frame < FRAMES
    row = (frame * 2 + entry // 8) * streams + stream
    d = tl.arange(0, BLOCK)
    known = d < LATENTS
    step = tl.arange(0, COLUMNS)
    b = tl.load(bias + d, mask=known, other=0.0).to(tl.float32)
    size = tl.load(sizes + i)
    acc = tl.zeros([16, BLOCK], tl.float32)
    squares = tl.zeros([16], tl.float32)
    wait(OVERLAP)
    for start in tl.range(0, HIDDEN, COLUMNS, num_stages=3):
        column = start + step
        inside = column < HIDDEN
        y = tl.load(rows + row[:, None] * HIDDEN + column[None, :], mask=present[:, None] & inside[None, :], other=0.0)
        scale = tl.load(norm + column, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(weight + d[None, :] * HIDDEN + column[:, None], mask=known[None, :] & inside[:, None], other=0.0)
        wide = y.to(tl.float32)
        squares += tl.sum(wide * wide, 1)
        acc = tl.dot((wide * scale[None, :]).to(w.dtype), w, acc, input_precision="ieee")
    acc = acc * tl.rsqrt(squares / HIDDEN + eps)[:, None] + b[None, :]
    velocity = tl.where(present[:, None] & known[None, :], acc, 0.0).to(weight.dtype.element_ty).to(tl.float32)
    c, u = tl.split(tl.permute(tl.reshape(velocity, [2, 8, BLOCK]), [1, 2, 0]))
    u *= tl.sum(tl.sum(c * u, 1), 0) / (tl.sum(tl.sum(u * u, 1), 0) + 1e-8)
    strength = tl.load(cfg + stream)
    frame = tl.arange(0, 8)
    where = (stream * FRAMES + frame)[:, None] * LATENTS + d[None, :]
    mask = (frame < FRAMES)[:, None] & known[None, :]
    old = tl.load(x + where, mask=mask, other=0.0)
    tl.store(out + where, old - size * (u + strength * (c - u)), mask=mask)
