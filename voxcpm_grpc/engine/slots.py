"""The per-slot state on the device: made once, written when a stream opens, advanced by the model's steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from voxcpm_grpc.engine.sequence import Sequence
from voxcpm_grpc.models.base import SlotState, SpeechModel


@dataclass(frozen=True, slots=True)
class Slots:
    """`state` has one row more than there are slots: the last is scratch, for rows that only pad a batch."""

    state: SlotState
    device: torch.device

    @classmethod
    def allocate(cls, model: SpeechModel, slots: int, pages: int, device: torch.device) -> Slots:
        """For `slots` streams of at most `pages` KV pages each."""
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
            position=zeros(),
            patches=zeros(),
            history=zeros(info.max_model_len, info.patch_size, info.latent_dim, dtype=model.layout.dtype),
            block_table=zeros(pages, dtype=torch.int32),
            model=model.allocate(rows),
        )
        return cls(state, device)

    def open(self, sequence: Sequence) -> None:
        """Write what a new stream brings along. Its pages follow with `table`."""
        slot, request, prompt, state = sequence.slot, sequence.request, sequence.prompt, self.state
        sampling = request.sampling
        state.seed[slot] = sampling.seed
        state.turn[slot] = request.turn
        state.segment[slot] = request.segment
        state.step[slot] = 0
        state.cfg[slot] = sampling.cfg_value
        state.temperature[slot] = sampling.temperature
        state.position[slot] = len(prompt)
        state.patches[slot] = len(prompt.patches)
        if len(prompt.patches):
            patches = torch.from_numpy(np.ascontiguousarray(prompt.patches))
            state.history[slot, : len(patches)] = upload(patches, self.device).to(state.history.dtype)

    def table(self, sequences: list[Sequence]) -> None:
        """Tell the device of pages it does not know yet, for all sequences in one write."""
        rows, columns, pages = [], [], []
        for sequence in sequences:
            fresh = sequence.pages[sequence.tabled :]
            rows += [sequence.slot] * len(fresh)
            columns += range(sequence.tabled, len(sequence.pages))
            pages += fresh
            sequence.tabled = len(sequence.pages)
        if rows:
            where = upload(torch.tensor([rows, columns], dtype=torch.int64), self.device)
            self.state.block_table[where[0], where[1]] = upload(torch.tensor(pages, dtype=torch.int32), self.device)


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for it."""
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
