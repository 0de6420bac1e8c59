"""Converts sequences to the index tensors of a step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from voxcpm_grpc.attention import PagedRows
from voxcpm_grpc.engine.scheduling.blocks import SCRATCH_PAGE
from voxcpm_grpc.engine.scheduling.round import PrefillChunk
from voxcpm_grpc.engine.scheduling.sequence import Sequence
from voxcpm_grpc.kernels.rows import reference
from voxcpm_grpc.models.base import PrefillRows, Rows, SlotState, Span, StepRows


def step_rows(slot: Tensor, state: SlotState, page_size: int, longest: int) -> StepRows:
    """One row for each slot [b], from the state on the device. No context is longer than `longest` positions."""
    pages = -(-longest // page_size)
    locate = _locate_rows(slot.device)
    position, context, table, write, starts = locate(slot, state.position, state.block_table, page_size, pages)
    paged = PagedRows(
        cu_seqlens=starts,
        context=context,
        block_table=table,
        write=write,
        max_rows=1,
        max_context=longest,
        fresh=False,
    )
    return StepRows(slot=slot, position=position, paged=paged)


@functools.cache
def _locate_rows(device: torch.device) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    if device.type != "cuda" or not find_spec("triton"):
        return reference.locate_rows
    from voxcpm_grpc.kernels.rows.locate_rows import locate_rows

    return locate_rows


@dataclass(frozen=True, slots=True)
class PackedChunks:
    """Rows of sequences on the host. Positions after the end of a prompt are generated steps.

    Dimensions: t rows, c columns of the family, m encoded rows, s sequences, f sequences whose generation starts. All
    arrays are int64.
    """

    columns: np.ndarray  # [c, t]
    encoded: np.ndarray  # [3, m]: the rows, their slots and the entries that they read
    position: np.ndarray  # [t]
    write: np.ndarray  # [t]
    offsets: np.ndarray  # [s + 1]
    slot: np.ndarray  # [s]
    context: np.ndarray  # [s]
    row_slot: np.ndarray  # [t], of the sequence of each row
    last: np.ndarray  # [f]
    last_slot: np.ndarray  # [f]

    def __len__(self) -> int:
        return len(self.position)

    def padded(self, rows: int, sequences: int, scratch: int) -> np.ndarray:
        """The input of `prefill_rows`, with padding rows that write to the scratch page and belong to no sequence."""
        flat = np.zeros(sum(flat_sizes(rows, sequences, len(self.columns))), np.int64)
        start = 0
        for values, size, fill in (
            *((column, rows, 0) for column in self.columns),
            (self.position, rows, 0),
            (self.row_slot, rows, scratch),
            (self.write, rows, SCRATCH_PAGE),
            (self.offsets, sequences + 1, len(self)),
            (self.slot, sequences, scratch),
            (self.context, sequences, 0),
            (self.last, sequences, 0),
            (self.last_slot, sequences, scratch),
        ):
            flat[start : start + len(values)] = values
            flat[start + len(values) : start + size] = fill
            start += size
        return flat


def pack(
    lay: Callable[[Listed[Span]], Rows], chunks: list[PrefillChunk], page_size: int, steps: Listed[Sequence] = ()
) -> PackedChunks:
    """One row for each of `steps`, what it has just generated, and then the rows of chunks.

    `lay` is `SpeechModel.rows`.
    """
    sequences = [*steps, *(chunk.sequence for chunk in chunks)]
    starts = [*(s.length - 1 for s in steps), *(chunk.start for chunk in chunks)]
    stops = [*(s.length for s in steps), *(chunk.stop for chunk in chunks)]
    counts = [stop - start for start, stop in zip(starts, stops, strict=True)]
    offsets = np.array([0, *accumulate(counts)], np.int64)
    each = np.repeat(np.arange(len(counts)), np.array(counts, np.int64))  # [t], of the sequences
    position = np.arange(offsets[-1]) + (np.array(starts, np.int64) - offsets[:-1])[each]
    pages = np.array([page for sequence in sequences for page in sequence.pages], np.int64)
    first = np.array([0, *accumulate(len(sequence.pages) for sequence in sequences)], np.int64)
    write = pages[first[each] + position // page_size] * page_size + position % page_size
    slot = np.array([sequence.slot for sequence in sequences], np.int64)
    row_slot = slot[each]
    plans = (sequence.plan for sequence in sequences)
    rows = lay([Span(*span) for span in zip(plans, starts, stops, strict=True)])
    starting = np.array([True] * len(steps) + [chunk.starts_generation for chunk in chunks], bool)
    return PackedChunks(
        columns=rows.columns,
        encoded=np.stack([rows.encoded, row_slot[rows.encoded], rows.entries]),
        position=position,
        write=write,
        offsets=offsets,
        slot=slot,
        context=np.array(stops, np.int64),
        row_slot=row_slot,
        last=offsets[1:][starting] - 1,
        last_slot=slot[starting],
    )


def prefill_rows(
    flat: Tensor, rows: int, sequences: int, columns: int, state: SlotState, page_size: int, longest: int, fresh: bool
) -> PrefillRows:
    """The rows in `flat`, int64 on the device, which `PackedChunks.padded` has filled."""
    own, position, row_slot, write, offsets, slot, context, last, last_slot = flat.split(
        flat_sizes(rows, sequences, columns)
    )
    paged = PagedRows(
        cu_seqlens=offsets.int(),
        context=context.int(),
        block_table=state.block_table[slot, : -(-longest // page_size)],
        write=write,
        max_rows=rows,
        max_context=longest,
        fresh=fresh,
    )
    return PrefillRows(
        columns=own.view(columns, rows),
        position=position,
        paged=paged,
        last=last,
        last_slot=last_slot,
        slot=row_slot,
    )


def flat_sizes(rows: int, sequences: int, columns: int) -> list[int]:
    """The lengths of the parts of the result of `PackedChunks.padded`."""
    return [columns * rows, *3 * [rows], sequences + 1, *4 * [sequences]]
