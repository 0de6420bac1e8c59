"""The state of each slot on the device: allocated once, written when a stream opens, updated by the model's steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from voxcpm_grpc.engine.adapters import NO_PLACE
from voxcpm_grpc.engine.host_copy import HostCopy, SavedSlot
from voxcpm_grpc.engine.sequence import Sequence
from voxcpm_grpc.models.base import SlotState, SpeechModel, upload

# The numbers of a slot that are written when a stream opens, one int64 each, in this order.
NUMBERS = ("seed", "turn", "segment", "step", "position", "patches", "adapter")
STRENGTHS = ("cfg", "temperature")  # two float32 behind them, in the place of another int64
OPENING = 1 + len(NUMBERS) + 1  # numbers of a new stream: its slot before these


@dataclass(frozen=True, slots=True)
class Slots:
    """The state of all slots. The last row of `state` is scratch, for the padding rows of a batch."""

    state: SlotState
    numbers: Tensor  # [n, 8] int64: the memory of the `number_columns` of the state, which one copy writes
    device: torch.device

    @classmethod
    def allocate(cls, model: SpeechModel, slots: int, pages: int, device: torch.device) -> Slots:
        """State for `slots` streams of at most `pages` KV pages each."""
        rows = slots + 1

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=device)

        info, numbers = model.info, zeros(len(NUMBERS) + 1)
        shape = info.latents
        assert shape is not None
        state = SlotState(
            **number_columns(numbers),
            history=zeros(info.max_model_len, shape.frames, shape.dim, dtype=model.layout.dtype),
            block_table=zeros(pages, dtype=torch.int32),
            model=model.allocate(rows),
        )
        state.adapter.fill_(NO_PLACE)
        return cls(state, numbers, device)

    def opening(self, sequences: list[Sequence]) -> np.ndarray:
        """The slots of new streams, each followed by its row of `numbers`, int64 [o, 9]."""
        content = np.zeros((len(sequences), OPENING), np.int64)
        for row, sequence in zip(content, sequences, strict=True):
            assert sequence.slot is not None
            request, sampling, prompt = sequence.request, sequence.request.sampling, sequence.prompt
            lengths = (len(prompt), len(prompt.patches))
            row[:-1] = (sequence.slot, sampling.seed, request.turn, request.segment, 0, *lengths, sequence.place)
            row[-1:].view(np.float32)[:] = (sampling.cfg_value, sampling.temperature)
        return content

    def open(self, sequences: list[Sequence], content: Tensor) -> Tensor:
        """Write the state of new streams except their pages, and return their slots [o].

        `content` is the result of `opening` on the device.
        """
        slots = content[:, 0].contiguous()
        self.numbers.index_copy_(0, slots, content[:, 1:])
        for sequence in sequences:
            if len(sequence.prompt.patches):
                patches = upload(torch.from_numpy(np.ascontiguousarray(sequence.prompt.patches)), self.device)
                self.state.history[sequence.slot, : len(patches)] = patches.to(self.state.history.dtype)
        return slots

    def count_step(self, sequences: list[Sequence]) -> None:
        """Advance step, patches and position of these sequences by one, as `SpeechModel.advance` does."""
        slots = upload(torch.tensor([sequence.slot for sequence in sequences]), self.device)
        one = torch.ones_like(slots)
        for counter in (self.state.position, self.state.patches, self.state.step):
            counter.index_add_(0, slots, one)

    def save(self, slot: int, sequence: Sequence) -> SavedSlot:
        """Copy the state of a sequence in a slot to the host, without a wait.

        Work that is launched later on the same stream may overwrite the slot.
        """
        patches = len(sequence.prompt.patches) + sequence.launched
        rows = self._rows(slot, patches)
        return SavedSlot(patches, HostCopy(torch.cat([row.flatten().view(torch.uint8) for row in rows])))

    def restore(self, slot: int, saved: SavedSlot, place: int) -> None:
        """Write a saved state to a slot, with the adapter in this place. Must be launched on the stream of `save`."""
        rows = self._rows(slot, saved.patches)
        packed = upload(saved.packed.tensor, self.device)
        parts = packed.split([row.numel() * row.element_size() for row in rows])
        for row, part in zip(rows, parts, strict=True):
            row.copy_(part.view(row.dtype).view_as(row))
        self.state.adapter[slot] = place

    def _rows(self, slot: int, patches: int) -> list[Tensor]:
        """The row of a slot in each state tensor, with `patches` entries of the history and without the block table.

        Rows with larger elements come first, so that each is aligned when they are packed.
        """
        model = self.state.model
        tensors = [self.numbers, *(getattr(model, field.name) for field in fields(model))]
        rows = [*(tensor[slot : slot + 1] for tensor in tensors), self.state.history[slot, :patches]]
        return sorted(rows, key=Tensor.element_size, reverse=True)

    def new_pages(self, sequences: Iterable[Sequence]) -> np.ndarray:
        """The places of all new pages in the flat block table, and the pages, int64 [2, n]."""
        places: list[int] = []
        pages: list[int] = []
        for sequence in sequences:
            fresh = sequence.pages[sequence.uploaded_pages :]
            if fresh:
                assert sequence.slot is not None
                first = sequence.slot * self.state.block_table.shape[1] + sequence.uploaded_pages
                places += range(first, first + len(fresh))
                pages += fresh
                sequence.uploaded_pages = len(sequence.pages)
        return np.array([places, pages], np.int64)

    def write_pages(self, new: Tensor) -> None:
        """Write the result of `new_pages`, which is on the device, to the block table."""
        if new.numel():
            where, pages = new
            self.state.block_table.view(-1).index_copy_(0, where, pages.int())


def number_columns(numbers: Tensor) -> dict[str, Tensor]:
    """The tensors of SlotState whose memory is `numbers`, int64 [n, 8]."""
    strengths = numbers[:, len(NUMBERS) :].view(torch.float32)
    columns = (*numbers[:, : len(NUMBERS)].unbind(1), *strengths.unbind(1))
    return dict(zip((*NUMBERS, *STRENGTHS), columns, strict=True))


class PaddedSlots:
    """The slots of a step in static memory, where captured calls of a fixed size read them."""

    def __init__(self, scratch: int, device: torch.device) -> None:
        """Memory for `scratch` rows. The slot `scratch` is that of padding rows."""
        self.rows = torch.full((scratch,), scratch, dtype=torch.int64, device=device)
        self._content = np.full(scratch, scratch)  # of `rows`

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
