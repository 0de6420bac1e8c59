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
from voxcpm_grpc.engine.batch import PrefillChunk
from voxcpm_grpc.engine.blocks import SCRATCH_PAGE
from voxcpm_grpc.engine.sequence import Sequence
from voxcpm_grpc.kernels import reference
from voxcpm_grpc.models.base import PrefillRows, SlotState, StepRows


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
    from voxcpm_grpc.kernels.slot_state import locate_rows

    return locate_rows


@dataclass(frozen=True, slots=True)
class PackedChunks:
    """Rows of sequences on the host. Positions after the end of a prompt are generated patches.

    Dimensions: t rows, s sequences, a audio rows, f sequences whose generation starts. All arrays are int64.
    """

    token: np.ndarray  # [t]
    audio: np.ndarray  # [a]
    audio_slot: np.ndarray  # [a]
    audio_patch: np.ndarray  # [a]
    position: np.ndarray  # [t]
    write: np.ndarray  # [t]
    offsets: np.ndarray  # [s + 1]
    slot: np.ndarray  # [s]
    context: np.ndarray  # [s]
    row_slot: np.ndarray  # [t], of the sequence of each row
    last: np.ndarray  # [f]
    last_slot: np.ndarray  # [f]

    def __len__(self) -> int:
        return len(self.token)

    @property
    def audio_columns(self) -> np.ndarray:
        """The rows, slots and patches of audio rows, [3, a]."""
        return np.stack([self.audio, self.audio_slot, self.audio_patch])

    def padded(self, rows: int, sequences: int, scratch: int) -> np.ndarray:
        """The input of `prefill_rows`, with padding rows that write to the scratch page and belong to no sequence."""
        flat = np.zeros(flat_size(rows, sequences), np.int64)
        is_audio = flat[4 * rows : 5 * rows]
        is_audio[self.audio] = 1
        start = 0
        for values, size, fill in (
            (self.token, rows, 0),
            (self.position, rows, 0),
            (self.row_slot, rows, scratch),
            (self.write, rows, SCRATCH_PAGE),
            (is_audio, rows, 0),
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


def pack(chunks: list[PrefillChunk], page_size: int, steps: Listed[Sequence] = ()) -> PackedChunks:
    """One row for each of `steps`, the patch that it has just generated, and then the rows of chunks."""
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
    token = np.zeros(offsets[-1], np.int64)
    audio, patch = (
        [np.arange(len(steps))],
        [np.array([len(s.prompt.patches) + s.launched - 1 for s in steps], np.int64)],
    )
    for chunk, offset in zip(chunks, offsets[len(steps) :], strict=False):
        prompt = chunk.sequence.prompt
        known = prompt.tokens[chunk.start : chunk.stop]
        token[offset : offset + len(known)] = known
        if len(prompt.patches) or chunk.stop > len(prompt):
            rows, of_history = _audio(chunk)
            audio.append(rows + offset)
            patch.append(of_history)
    rows = np.concatenate(audio)
    starting = np.array([True] * len(steps) + [chunk.starts_generation for chunk in chunks], bool)
    return PackedChunks(
        token=token,
        audio=rows,
        audio_slot=slot[each[rows]],
        audio_patch=np.concatenate(patch),
        position=position,
        write=write,
        offsets=offsets,
        slot=slot,
        context=np.array(stops, np.int64),
        row_slot=slot[each],
        last=offsets[1:][starting] - 1,
        last_slot=slot[starting],
    )


def _audio(chunk: PrefillChunk) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a chunk that are patches, and the index of each in the history of its slot."""
    prompt = chunk.sequence.prompt
    audio = np.concatenate([prompt.audio, np.ones(max(0, chunk.stop - len(prompt)), bool)])
    rows = np.flatnonzero(audio[chunk.start : chunk.stop])
    return rows, (np.cumsum(audio) - 1)[chunk.start + rows]


def prefill_rows(
    flat: Tensor, rows: int, sequences: int, state: SlotState, page_size: int, longest: int, fresh: bool
) -> PrefillRows:
    """The rows in `flat`, int64 on the device, which `PackedChunks.padded` has filled."""
    token, position, row_slot, write, is_audio, offsets, slot, context, last, last_slot = flat.split(
        _flat_sizes(rows, sequences)
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
        token=token,
        position=position,
        is_audio=is_audio.bool(),
        paged=paged,
        last=last,
        last_slot=last_slot,
        slot=row_slot,
    )


def flat_size(rows: int, sequences: int) -> int:
    """The length of the result of `PackedChunks.padded`."""
    return sum(_flat_sizes(rows, sequences))


def _flat_sizes(rows: int, sequences: int) -> list[int]:
    return [*5 * [rows], sequences + 1, *4 * [sequences]]
