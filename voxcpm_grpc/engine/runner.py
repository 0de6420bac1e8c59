"""Sequences -> device rows -> frames, and the frames back to the host one step later."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from voxcpm_grpc.attention import PagedKV, PagedRows
from voxcpm_grpc.engine.scheduler import Batch, Chunk
from voxcpm_grpc.engine.sequence import Sequence
from voxcpm_grpc.engine.slots import Slots, upload
from voxcpm_grpc.models.base import Frame, PrefillRows, SpeechModel, StepRows


class HostCopy:
    """Tensors on their way to the host. `ready` asks, `wait` waits; only then may `tensors` be read."""

    def __init__(self, *tensors: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if tensors[0].is_cuda:
            self.tensors = tuple(
                torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) for t in tensors
            )
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self.tensors = tensors

    def ready(self) -> bool:
        return self._event is None or self._event.query()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()


@dataclass(frozen=True, slots=True)
class Launch:
    """What a round set in motion: for each timestep count its sequences and their frame."""

    frames: list[tuple[list[Sequence], HostCopy]]

    def ready(self) -> bool:
        return all(copy.ready() for _, copy in self.frames)

    def wait(self) -> None:
        for _, copy in self.frames:
            copy.wait()


class Runner:
    """Turns a batch into device work. Nothing here waits for the device."""

    def __init__(self, model: SpeechModel, slots: Slots, kv: PagedKV) -> None:
        self.model = model
        self.slots = slots
        self.kv = kv
        self.lookahead = 1 if slots.device.type == "cuda" else 0  # launches that may be under way unread

    @torch.inference_mode()
    def launch(self, batch: Batch) -> Launch:
        self.slots.table(list(batch.sequences))
        for sequence in batch.opened:
            assert sequence.slot is not None
            self.slots.open(sequence)
            self.model.open(sequence.slot, self.slots.state, sequence.prompt.primer)
        if batch.chunks:
            self.model.prefill(self._prefill_rows(batch.chunks), self.slots.state, self.kv)
        groups: defaultdict[int, list[Sequence]] = defaultdict(list)
        for sequence in batch.steps:
            groups[sequence.request.sampling.inference_timesteps].append(sequence)
        return Launch([(group, self._step(group, timesteps)) for timesteps, group in groups.items()])

    @torch.inference_mode()
    def generated(self, sequence: Sequence) -> HostCopy:
        """The patches a sequence has delivered, float32 [steps, P, D]."""
        start = len(sequence.prompt.patches)
        history = self.slots.state.history[sequence.slot, start : start + sequence.delivered]
        return HostCopy(history.float().clone())

    def _step(self, group: list[Sequence], timesteps: int) -> HostCopy:
        slot = self._device(np.array([sequence.slot for sequence in group]))
        state = self.slots.state
        page_size = self.kv.page_size
        longest = max(sequence.length for sequence in group)  # the launched step is counted already
        table = state.block_table[slot, : -(-longest // page_size)]
        position = state.position[slot]
        page = state.block_table[slot, position // page_size].long()
        paged = PagedRows(
            cu_seqlens=torch.arange(len(group) + 1, dtype=torch.int32, device=slot.device),
            context=(position + 1).int(),
            block_table=table,
            write=page * page_size + position % page_size,
            max_rows=1,
            max_context=longest,
            fresh=False,
        )
        frame: Frame = self.model.step(StepRows(slot=slot, paged=paged, timesteps=timesteps), state, self.kv)
        return HostCopy(frame.audio, frame.stop, frame.finite)

    def _prefill_rows(self, chunks: list[Chunk]) -> PrefillRows:
        """Pack the chunks: a position below the prompt's length is the prompt's, one above is a generated patch."""
        tokens, positions, writes, audio, audio_slots, audio_patches = [], [], [], [], [], []
        page_size = self.kv.page_size
        counts = [chunk.stop - chunk.start for chunk in chunks]
        offsets = [0, *accumulate(counts)]
        for chunk, offset in zip(chunks, offsets, strict=False):
            sequence, prompt = chunk.sequence, chunk.sequence.prompt
            position = np.arange(chunk.start, chunk.stop)
            generated = max(0, sequence.length - len(prompt))
            token = np.concatenate([prompt.tokens, np.zeros(generated, np.int64)])[chunk.start : chunk.stop]
            is_audio = np.concatenate([prompt.audio, np.ones(generated, bool)])
            patch = (np.cumsum(is_audio) - 1)[chunk.start : chunk.stop]
            rows = np.flatnonzero(is_audio[chunk.start : chunk.stop])
            pages = np.asarray(sequence.pages)
            tokens.append(token)
            positions.append(position)
            writes.append(pages[position // page_size] * page_size + position % page_size)
            audio.append(rows + offset)
            audio_slots.append(np.full(len(rows), sequence.slot))
            audio_patches.append(patch[rows])
        speaking = [index for index, chunk in enumerate(chunks) if chunk.starts_speech]
        longest = max(chunk.stop for chunk in chunks)
        slot = self._device(np.array([chunk.sequence.slot for chunk in chunks]))
        paged = PagedRows(
            cu_seqlens=self._device(np.array(offsets), torch.int32),
            context=self._device(np.array([chunk.stop for chunk in chunks]), torch.int32),
            block_table=self.slots.state.block_table[slot, : -(-longest // page_size)],
            write=self._device(np.concatenate(writes)),
            max_rows=max(counts),
            max_context=longest,
            fresh=all(chunk.start == 0 for chunk in chunks),
        )
        return PrefillRows(
            token=self._device(np.concatenate(tokens)),
            position=self._device(np.concatenate(positions)),
            audio=self._device(np.concatenate(audio)),
            audio_slot=self._device(np.concatenate(audio_slots)),
            audio_patch=self._device(np.concatenate(audio_patches)),
            paged=paged,
            last=self._device(np.array([offsets[index + 1] - 1 for index in speaking])),
            last_slot=self._device(np.array([chunks[index].sequence.slot for index in speaking])),
        )

    def _device(self, values: np.ndarray, dtype: torch.dtype = torch.int64) -> Tensor:
        return upload(torch.from_numpy(values).to(dtype), self.slots.device)
