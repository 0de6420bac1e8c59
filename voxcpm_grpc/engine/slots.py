"""The state of each slot on the device: allocated once, written when a stream opens, updated by the model's steps."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from voxcpm_grpc.engine.host_copy import HostCopy, SavedSlot
from voxcpm_grpc.engine.places import NO_PLACE
from voxcpm_grpc.engine.sequence import Sequence
from voxcpm_grpc.models.base import SlotState, SpeechModel, upload

NOT_SAVED = {"history", "block_table", "model", "adapter"}  # fields of SlotState that are not saved as they are


@dataclass(frozen=True, slots=True)
class Slots:
    """The state of all slots. The last row of `state` is scratch, for the padding rows of a batch."""

    state: SlotState
    device: torch.device

    @classmethod
    def allocate(cls, model: SpeechModel, slots: int, pages: int, device: torch.device) -> Slots:
        """State for `slots` streams of at most `pages` KV pages each."""
        rows = slots + 1

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=device)

        info = model.info
        state = SlotState(
            seed=zeros(),
            turn=zeros(),
            segment=zeros(),
            step=zeros(),
            cfg=zeros(dtype=torch.float32),
            temperature=zeros(dtype=torch.float32),
            adapter=torch.full((rows,), NO_PLACE, dtype=torch.int64, device=device),
            position=zeros(),
            patches=zeros(),
            history=zeros(info.max_model_len, info.patch_size, info.latent_dim, dtype=model.layout.dtype),
            block_table=zeros(pages, dtype=torch.int32),
            model=model.allocate(rows),
        )
        return cls(state, device)

    def open(self, sequences: list[Sequence]) -> Tensor:
        """Write the state of new streams except their pages, and return their slots [o]."""
        state = self.state
        rows = [(s.slot, s.request, s.request.sampling, s.prompt) for s in sequences]
        numbers = [
            (slot, sampling.seed, request.turn, request.segment, 0, len(prompt), len(prompt.patches), place)
            for (slot, request, sampling, prompt), place in zip(rows, (s.place for s in sequences), strict=True)
        ]
        columns = upload(torch.tensor(numbers, dtype=torch.int64).T.contiguous(), self.device)
        slots = columns[0]
        for field, column in zip(
            (state.seed, state.turn, state.segment, state.step, state.position, state.patches, state.adapter),
            columns[1:],
            strict=True,
        ):
            field.index_copy_(0, slots, column)
        strengths = [(sampling.cfg_value, sampling.temperature) for _, _, sampling, _ in rows]
        cfg, temperature = upload(torch.tensor(strengths, dtype=torch.float32).T.contiguous(), self.device)
        state.cfg.index_copy_(0, slots, cfg)
        state.temperature.index_copy_(0, slots, temperature)
        for slot, _, _, prompt in rows:
            if len(prompt.patches):
                patches = upload(torch.from_numpy(np.ascontiguousarray(prompt.patches)), self.device)
                state.history[slot, : len(patches)] = patches.to(state.history.dtype)
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
        state = self.state
        own = [getattr(state, field.name) for field in fields(state) if field.name not in NOT_SAVED]
        tensors = [*own, *(getattr(state.model, field.name) for field in fields(state.model))]
        rows = [*(tensor[slot : slot + 1] for tensor in tensors), state.history[slot, :patches]]
        return sorted(rows, key=Tensor.element_size, reverse=True)

    def write_block_table(self, sequences: list[Sequence]) -> None:
        """Write the new pages of all sequences to the block table, in one write."""
        rows, columns, pages = [], [], []
        for sequence in sequences:
            fresh = sequence.pages[sequence.uploaded_pages :]
            rows += [sequence.slot] * len(fresh)
            columns += range(sequence.uploaded_pages, len(sequence.pages))
            pages += fresh
            sequence.uploaded_pages = len(sequence.pages)
        if rows:
            where = upload(torch.tensor([rows, columns], dtype=torch.int64), self.device)
            self.state.block_table[where[0], where[1]] = upload(torch.tensor(pages, dtype=torch.int32), self.device)


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
