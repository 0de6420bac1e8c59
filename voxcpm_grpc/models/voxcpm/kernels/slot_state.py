"""Kernels that read the state of all slots for a step, or store its results there, in one launch each.

Dimensions: b streams of a step, n slots, P frames of a patch, D latent channels, c hidden size, p pages of a sequence.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import chained, launch_next, wait


def read_patch(slot: Tensor, condition: Tensor, cfg: Tensor) -> tuple[Tensor, Tensor]:
    """Computes `reference.read_patch`."""
    _require_contiguous(slot, condition)
    (b,), count = slot.shape, condition[0].numel()
    patch, strength = condition.new_empty(b, *condition.shape[1:]), cfg.new_empty(b)
    block = triton.next_power_of_2(count)
    _read_patch_kernel[(b,)](
        slot, condition, cfg, patch, strength, cfg.stride(0), COUNT=count, BLOCK=block, **chained(slot.device)
    )
    return patch, strength


def read_step(
    slot: Tensor, position: Tensor, condition: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes `reference.read_step`."""
    _require_contiguous(slot, position, condition, cos, sin)
    (b,), count, half = slot.shape, condition[0].numel(), cos[0].numel()
    patch = condition.new_empty(b, *condition.shape[1:])
    rotation = [table.new_empty(b, *table.shape[1:]) for table in (cos, sin)]
    block = triton.next_power_of_2(max(count, half))
    _read_step_kernel[(b,)](
        slot,
        position,
        condition,
        cos,
        sin,
        patch,
        *rotation,
        len(cos),
        COUNT=count,
        HALF=half,
        BLOCK=block,
        **chained(slot.device),
    )
    return patch, rotation[0], rotation[1]


def pack_frame(audio: Tensor, slot: Tensor, stop: Tensor, finite: Tensor, patch: Tensor) -> Tensor:
    """Computes `reference.pack_frame`."""
    _require_contiguous(audio, slot, stop, finite, patch)
    b, samples = audio.shape
    count, size = patch[0].numel(), patch.element_size()
    columns = -(-count * size // 4)
    packed = torch.empty(b, samples + 3 + columns, dtype=torch.float32, device=audio.device)
    flags, room = (stop.view(torch.int8), finite.view(torch.int8)), columns * 4 // size
    block = min(triton.next_power_of_2(samples), 8192)
    _pack_frame_kernel[(b,)](
        audio,
        slot,
        *flags,
        patch,
        packed,
        packed.view(patch.dtype),
        samples,
        COLUMNS=columns,
        COUNT=count,
        ROOM=room,
        BLOCK=block,
        PATCH_BLOCK=triton.next_power_of_2(room),
        num_warps=8,
    )
    return packed


def store_patch(
    latents: Tensor,
    stopping: Tensor,
    stop_head: Tensor,
    slot: Tensor,
    patches: Tensor,
    step: Tensor,
    condition: Tensor,
    stop: Tensor,
    finite: Tensor,
    history: Tensor,
    limit: float,
) -> None:
    """Computes `reference.store_patch`."""
    _require_contiguous(latents, stopping, stop_head, slot, condition, stop, finite, history)
    _require_one_stride(patches, step)
    count, hidden = latents[0].numel(), stopping.shape[1]
    flags, sizes = (stop.view(torch.int8), finite.view(torch.int8)), (patches.stride(0), history.shape[1])
    _store_patch_kernel[(len(slot),)](
        latents,
        stopping,
        stop_head,
        slot,
        patches,
        step,
        condition,
        *flags,
        history,
        limit,
        *sizes,
        COUNT=count,
        BLOCK=triton.next_power_of_2(count),
        HIDDEN=hidden,
        HIDDEN_BLOCK=triton.next_power_of_2(hidden),
    )


def store_hidden(slot: Tensor, hidden: Sequence[Tensor], kept: Sequence[Tensor], counters: Sequence[Tensor]) -> None:
    """Computes `reference.store_hidden`."""
    _require_contiguous(slot, *hidden, *kept)
    _require_one_stride(*counters)
    count, scratch, stride = hidden[0].shape[1], len(kept[0]) - 1, counters[0].stride(0)
    block = triton.next_power_of_2(count)
    _store_hidden_kernel[(len(slot),)](slot, *hidden, *kept, *counters, stride, scratch, COUNT=count, BLOCK=block)


def _require_contiguous(*tensors: Tensor) -> None:
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("all tensors but the numbers of slots must be contiguous")


def _require_one_stride(*counters: Tensor) -> None:
    if len({counter.stride(0) for counter in counters}) > 1:
        raise ValueError("all counters must have the same stride")


# `stride` is that of the numbers of slots, which share a table. The alignment of views and the sizes of tables are not
# specialized: a compilation would stall every stream.
@triton.jit(do_not_specialize=["slot", "stride"])
def _read_patch_kernel(
    slot, condition, cfg, patch, strength, stride, COUNT: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr
):
    launch_next(OVERLAP)
    stream = tl.program_id(0)
    element = tl.arange(0, BLOCK)
    inside = element < COUNT
    wait(OVERLAP)
    own = tl.load(slot + stream)
    tl.store(patch + stream * COUNT + element, tl.load(condition + own * COUNT + element, mask=inside), mask=inside)
    tl.store(strength + stream, tl.load(cfg + own * stride))


@triton.jit(do_not_specialize=["slot", "position", "positions"])
def _read_step_kernel(
    slot,
    position,
    condition,
    cos,
    sin,
    patch,
    cos_out,
    sin_out,
    positions,
    COUNT: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    stream = tl.program_id(0)
    element = tl.arange(0, BLOCK)
    inside, rotated = element < COUNT, element < HALF
    wait(OVERLAP)
    own, at = tl.load(slot + stream), tl.minimum(tl.load(position + stream), positions - 1)
    tl.store(patch + stream * COUNT + element, tl.load(condition + own * COUNT + element, mask=inside), mask=inside)
    tl.store(cos_out + stream * HALF + element, tl.load(cos + at * HALF + element, mask=rotated), mask=rotated)
    tl.store(sin_out + stream * HALF + element, tl.load(sin + at * HALF + element, mask=rotated), mask=rotated)


@triton.jit(do_not_specialize=["slot", "samples"])
def _pack_frame_kernel(
    audio,
    slot,
    stop,
    finite,
    patch,
    packed,
    patches,
    samples,
    COLUMNS: tl.constexpr,
    COUNT: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
    PATCH_BLOCK: tl.constexpr,
):
    stream = tl.program_id(0)
    own = tl.load(slot + stream)
    good = tl.load(finite + own).to(tl.int32)
    row = stream * (samples + 3 + COLUMNS)
    out = packed + row
    for start in tl.range(0, samples, BLOCK):
        sample = start + tl.arange(0, BLOCK)
        inside = sample < samples
        x = tl.load(audio + stream * samples + sample, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + sample, x, mask=inside)
        good = tl.minimum(good, tl.min((tl.abs(x) < float("inf")).to(tl.int32), 0))
    tl.store(out + samples, tl.load(stop + own).to(tl.float32))
    tl.store(out + samples + 1, good.to(tl.float32))
    tl.store(out + samples + 2, 1.0)
    element = tl.arange(0, PATCH_BLOCK)
    content = tl.load(patch + own * COUNT + element, mask=element < COUNT, other=0.0)
    # `patches` is the memory of `packed`, of which ROOM elements fill COLUMNS.
    tl.store(patches + (row + samples + 3) * (ROOM // COLUMNS) + element, content, mask=element < ROOM)


@triton.jit(do_not_specialize=["slot", "stride", "entries"])
def _store_patch_kernel(
    latents,
    stopping,
    stop_head,
    slot,
    patches,
    step,
    condition,
    stop,
    finite,
    history,
    limit,
    stride,
    entries,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    HIDDEN: tl.constexpr,
    HIDDEN_BLOCK: tl.constexpr,
):
    stream = tl.program_id(0)
    own = tl.load(slot + stream)
    channel = tl.arange(0, HIDDEN_BLOCK)
    known = channel < HIDDEN
    state = tl.load(stopping + stream * HIDDEN + channel, mask=known, other=0.0).to(tl.float32)
    goes_on = tl.load(stop_head + channel, mask=known, other=0.0).to(tl.float32)
    ends = tl.load(stop_head + HIDDEN + channel, mask=known, other=0.0).to(tl.float32)
    # Logits are rounded to the dtype, as by a product of cuBLAS.
    goes_on, ends = tl.sum(state * goes_on, 0), tl.sum(state * ends, 0)
    dtype: tl.constexpr = stopping.dtype.element_ty
    tl.store(stop + own, (ends.to(dtype) > goes_on.to(dtype)).to(tl.int8))
    element = tl.arange(0, BLOCK)
    inside = element < COUNT
    x = tl.load(latents + stream * COUNT + element, mask=inside, other=0.0)
    good = tl.min((tl.abs(x) < limit).to(tl.int32), 0)
    patch = tl.where(good != 0, x, 0.0)
    tl.store(condition + own * COUNT + element, patch.to(condition.dtype.element_ty), mask=inside)
    tl.store(finite + own, good.to(tl.int8))
    entry = tl.minimum(tl.load(patches + own * stride) + tl.load(step + own * stride), entries - 1)
    tl.store(history + (own * entries + entry) * COUNT + element, patch.to(history.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["slot", "stride", "scratch"])
def _store_hidden_kernel(
    slot,
    semantic,
    acoustic,
    semantic_kept,
    acoustic_kept,
    position,
    step,
    stride,
    scratch,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    stream = tl.program_id(0)
    own = tl.load(slot + stream)
    channel = tl.arange(0, BLOCK)
    inside = channel < COUNT
    first = tl.load(semantic + stream * COUNT + channel, mask=inside)
    second = tl.load(acoustic + stream * COUNT + channel, mask=inside)
    tl.store(semantic_kept + own * COUNT + channel, first, mask=inside)
    tl.store(acoustic_kept + own * COUNT + channel, second, mask=inside)
    one = (own != scratch).to(tl.int64)
    tl.store(position + own * stride, tl.load(position + own * stride) + one)
    tl.store(step + own * stride, tl.load(step + own * stride) + one)
