"""The state of each slot on the device, and the speech of ended requests that is copied from it.

A state is allocated once, written when a stream opens, and updated by the model's steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from voxcpm_grpc.engine.scheduling.adapters import NO_BANK
from voxcpm_grpc.engine.scheduling.sequence import Sequence
from voxcpm_grpc.events import Finished
from voxcpm_grpc.kernels.launch.host_copy import HostCopy, SavedSlot
from voxcpm_grpc.models.base import Plan, SlotState, SpeechModel, upload
from voxcpm_grpc.request import VoicePart

# These numbers of a slot are written when a stream opens, one int64 each, in this order. Those of the family follow.
NUMBERS = ("seed", "turn", "segment", "step", "position", "adapter")


@dataclass(frozen=True, slots=True)
class Slots:
    """The state of all slots. The last row of `state` is scratch, for the padding rows of a round."""

    state: SlotState
    numbers: Tensor  # [n, c] int64: the memory of NUMBERS and of those of the family, which one copy writes
    device: torch.device
    entries: Callable[[Plan, int], Mapping[str, int]]  # `SpeechModel.entries` is called
    scratch: int  # the slot of padding rows, which is the last one

    @classmethod
    def allocate(cls, model: SpeechModel, slots: int, pages: int, device: torch.device) -> Slots:
        """State for `slots` streams of at most `pages` KV pages each."""
        rows = slots + 1

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=device)

        numbers = zeros(len(NUMBERS) + model.numbers)
        state = SlotState(
            **number_columns(numbers),
            block_table=zeros(pages, dtype=torch.int32),
            model=model.allocate(rows, numbers[:, len(NUMBERS) :]),
        )
        state.adapter.fill_(NO_BANK)
        return cls(state, numbers, device, model.entries, scratch=slots)

    @property
    def opening_size(self) -> int:
        """The numbers of a new stream: its slot before its row of `numbers`."""
        return 1 + self.numbers.shape[1]

    def opening(self, sequences: list[Sequence]) -> np.ndarray:
        """The slots of new streams, each followed by its row of `numbers`, int64 [o, opening_size]."""
        rows: list[tuple[int, ...]] = []
        for sequence in sequences:
            assert sequence.slot is not None
            request, plan = sequence.request, sequence.plan
            coordinates = request.sampling.seed, request.turn, request.segment
            made, numbers = sequence.resumed, plan.numbers.tolist()
            rows.append((sequence.slot, *coordinates, made, plan.positions + made, sequence.bank, *numbers))
        return np.array(rows, np.int64).reshape(-1, self.opening_size)

    def open(self, content: Tensor) -> Tensor:
        """Write the numbers of new streams, the result of `opening` on the device, and return their slots [o]."""
        slots = content[:, 0].contiguous()
        self.numbers.index_copy_(0, slots, content[:, 1:])
        return slots

    def count_step(self, sequences: list[Sequence]) -> None:
        """Advance step and position of these sequences by one, as `SpeechModel.advance` does."""
        slots = upload(torch.tensor([sequence.slot for sequence in sequences]), self.device)
        one = torch.ones_like(slots)
        for counter in (self.state.position, self.state.step):
            counter.index_add_(0, slots, one)

    def save(self, slot: int, sequence: Sequence) -> SavedSlot:
        """Copy the state of a sequence in a slot to the host, without a wait.

        Work that is launched later on the same stream may overwrite the slot.
        """
        entries = self.entries(sequence.plan, sequence.launched)
        rows = self._rows(slot, entries)
        return SavedSlot(entries, HostCopy(torch.cat([row.flatten().view(torch.uint8) for row in rows])))

    def restore(self, slot: int, saved: SavedSlot, bank: int) -> None:
        """Write a saved state to a slot, with the adapter in this bank. Must be launched on the stream of `save`."""
        rows = self._rows(slot, saved.entries)
        packed = upload(saved.packed.tensor, self.device)
        parts = packed.split([row.numel() * row.element_size() for row in rows])
        for row, part in zip(rows, parts, strict=True):
            row.copy_(part.view(row.dtype).view_as(row))
        self.state.adapter[slot : slot + 1].fill_(bank)  # `[slot] = bank` would wait for the device

    def _rows(self, slot: int, entries: Mapping[str, int]) -> list[Tensor]:
        """The row of a slot in each state tensor but the block table, with so many entries of those that have some.

        Rows with larger elements come first, so that each is aligned when they are packed.
        """
        rows, shared = [self.numbers[slot]], self.numbers.untyped_storage().data_ptr()
        for field in fields(self.state.model):
            tensor: Tensor = getattr(self.state.model, field.name)
            if tensor.untyped_storage().data_ptr() != shared:  # others are columns of `numbers`
                rows.append(tensor[slot, : entries[field.name]] if field.name in entries else tensor[slot])
        return sorted(rows, key=Tensor.element_size, reverse=True)

    def new_pages(self, sequences: Iterable[Sequence]) -> np.ndarray:
        """The positions of all new pages in the flat block table, and the pages, int64 [2, n]."""
        positions: list[int] = []
        pages: list[int] = []
        for sequence in sequences:
            fresh = sequence.pages[sequence.uploaded_pages :]
            if fresh:
                assert sequence.slot is not None
                first = sequence.slot * self.state.block_table.shape[1] + sequence.uploaded_pages
                positions += range(first, first + len(fresh))
                pages += fresh
                sequence.uploaded_pages = len(sequence.pages)
        return np.array([positions, pages], np.int64)

    def write_pages(self, new: Tensor) -> None:
        """Write the result of `new_pages`, which is on the device, to the block table."""
        if new.numel():
            where, pages = new
            self.state.block_table.view(-1).index_copy_(0, where, pages.int())


def number_columns(numbers: Tensor) -> dict[str, Tensor]:
    """The tensors of SlotState whose memory is `numbers`, int64 [n, c]."""
    return dict(zip(NUMBERS, numbers.unbind(1), strict=False))


class PaddedSlots:
    """The slots of a step in static memory, where captured calls of a fixed size read them."""

    def __init__(self, scratch: int, device: torch.device) -> None:
        """Memory for `scratch` rows. The slot `scratch` is that of padding rows."""
        self.rows = torch.full((scratch,), scratch, dtype=torch.int64, device=device)
        self._content = np.full(scratch, scratch)  # `rows` has this content

    def holds(self, slots: np.ndarray, size: int) -> bool:
        """True if the first `size` rows are these slots and padding."""
        return np.array_equal(self._padded(slots, size), self._content[:size])

    def put(self, slots: np.ndarray, size: int) -> None:
        """Set the first `size` rows to these slots and padding.

        Copies nothing if they are set already, because a graph after a copy starts late. That is the case from one step
        to the next while no stream starts or ends.
        """
        if self.holds(slots, size):
            return
        padded = self._padded(slots, size)
        self.rows[:size].copy_(upload(torch.from_numpy(padded), self.rows.device))
        self._content[:size] = padded

    def _padded(self, slots: np.ndarray, size: int) -> np.ndarray:
        padded = np.full(size, len(self._content))
        padded[: len(slots)] = slots
        return padded


KeptSpeech = tuple[str, Finished, Mapping[str, HostCopy]]
"""The id of a request and its end, with the copies of the arrays of its speech."""


def take_speech(ends: deque[KeptSpeech], tracks: tuple[str, ...], *, wait: bool) -> Iterator[tuple[str, Finished]]:
    """Take the ends whose arrays have arrived, in order, or all with `wait`. `tracks` are those of the model."""
    while ends and (wait or all(copy.ready() for copy in ends[0][2].values())):
        id, end, copies = ends.popleft()
        content = {name: copy.wait() for name, copy in copies.items()}
        yield id, replace(end, speech=VoicePart(content=content, tracks=tracks))
