"""The embeddings of codes, and the inputs of a step: their sum and that of the next id of the text, in one launch."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import chained, launch_next, wait


@dataclass(frozen=True, slots=True)
class FusedInputs:
    """`talker.StepInputs` in one launch, by the contiguous tables [r, h] of codes and of text."""

    codes: Tensor
    starts: Tensor  # [q] int64: the first rows of the codes of a step
    text: Tensor
    pad: int

    def __call__(self, slot: Tensor, step: Tensor, read: Tensor, text: Tensor, current: Tensor) -> Tensor:
        hidden, groups = self.codes.shape[1], len(self.starts)
        if not (slot.is_contiguous() and text.is_contiguous() and current.is_contiguous()):
            raise ValueError("slots, text and codes must be contiguous")
        if text.dtype != torch.int32 or any(x.dtype != torch.int64 for x in (slot, step, read, current)):
            raise ValueError("text must be int32, everything else int64")
        out = self.codes.new_empty(len(slot), hidden)
        block = min(256, triton.next_power_of_2(hidden))
        _step_inputs_kernel[(len(slot), triton.cdiv(hidden, block))](
            slot,
            step,
            read,
            text,
            current,
            self.starts,
            self.codes,
            self.text,
            out,
            step.stride(0),
            read.stride(0),
            text.shape[1],
            self.pad,
            HIDDEN=hidden,
            CODES=groups,
            BLOCK=block,
            **chained(slot.device),
        )
        return out


def lookup(ids: Tensor, table: Tensor) -> Tensor:
    """The rows [t, h] of contiguous ids int64 [t] in a contiguous table [r, h], which has all of them."""
    if ids.dtype != torch.int64 or not (ids.is_contiguous() and table.is_contiguous()):
        raise ValueError("ids must be contiguous int64, and the table contiguous")
    hidden = table.shape[1]
    out = table.new_empty(len(ids), hidden)
    block = min(1024, triton.next_power_of_2(hidden))
    _lookup_kernel[(len(ids), triton.cdiv(hidden, block))](
        ids, table, out, HIDDEN=hidden, BLOCK=block, **chained(ids.device)
    )
    return out


@triton.jit(do_not_specialize=["ids"])
def _lookup_kernel(ids, table, out, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    launch_next(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < HIDDEN
    entry = tl.load(table + tl.load(ids + row) * HIDDEN + column, mask=inside)
    tl.store(out + row * HIDDEN + column, entry, mask=inside)


# The alignment of views is not specialized: a compilation would stall every stream.
@triton.jit(do_not_specialize=["slot", "step", "read", "pad"])
def _step_inputs_kernel(
    slot,
    step,
    read,
    text,
    codes,
    starts,
    code_table,
    text_table,
    out,
    step_stride,
    read_stride,
    positions,
    pad,
    HIDDEN: tl.constexpr,
    CODES: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    wait(OVERLAP)
    stream = tl.program_id(0)
    row = tl.load(slot + stream)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < HIDDEN
    total = tl.zeros([BLOCK], tl.float32)
    for group in tl.static_range(CODES):
        entry = tl.load(codes + row * CODES + group) + tl.load(starts + group)
        total += tl.load(code_table + entry * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    at = tl.load(step + row * step_stride)
    present = at < tl.load(read + row * read_stride)
    known = tl.load(text + row * positions + tl.minimum(at, positions - 1)).to(tl.int64)
    id = tl.where(present, known, pad)
    beside = tl.load(text_table + id * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
    result = (total.to(kind).to(tl.float32) + beside).to(kind)
    tl.store(out + stream.to(tl.int64) * HIDDEN + column, result, mask=inside)
