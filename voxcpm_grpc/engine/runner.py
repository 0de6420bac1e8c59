"""Sequences -> device rows -> frames, and the frames back to the host while the language models still run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from voxcpm_grpc.attention import PagedKV
from voxcpm_grpc.engine.graph import StepGraph, batch_buckets, token_buckets
from voxcpm_grpc.engine.host_copy import HostCopy
from voxcpm_grpc.engine.kv_cache import allocate_kv
from voxcpm_grpc.engine.rows import PackedChunks, pack, prefill_rows, step_rows
from voxcpm_grpc.engine.scheduler import Batch, Chunk
from voxcpm_grpc.engine.sequence import Sequence
from voxcpm_grpc.engine.slots import PaddedSlots, Slots, upload
from voxcpm_grpc.kernels.graph import GraphPool, Priority
from voxcpm_grpc.models.base import EmbedRows, Frame, SpeechModel

LIBRARIES = 512 << 20  # bytes that kernels' modules and library workspaces take, beside PyTorch's own allocations

OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)


class EntryFault(Exception):
    """The prompts of a round could not be entered, for the cause that it has."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """What a round set in motion: for each timestep count its sequences and their frames, laid out by `pack_frame`."""

    frames: list[tuple[list[Sequence], HostCopy]]

    def ready(self) -> bool:
        return all(copy.ready() for _, copy in self.frames)


class Runner:
    """Turns a batch into device work. Nothing here waits for the device."""

    def __init__(self, model: SpeechModel, slots: Slots, kv: PagedKV, *, graph_tokens: int | None = None) -> None:
        """`graph_tokens` records the codec, steps of every size and prefills of up to so many positions as CUDA graphs,
        which are replayed; None records nothing."""
        self.model = model
        self.slots = slots
        self.kv = kv
        self._graphs = None if graph_tokens is None else _Graphs(model, slots, kv, graph_tokens)
        self.codec = model.codec if graph_tokens is None else model.codec.capture()

    @torch.inference_mode()
    def launch(self, batch: Batch) -> InFlight:
        """Set a round in motion. Raises EntryFault where no step was made and `enter` may be called again."""
        try:
            self.enter(batch)
        except OUT_OF_MEMORY:
            raise
        except Exception as error:
            raise EntryFault from error
        groups: defaultdict[int, list[Sequence]] = defaultdict(list)
        for sequence in batch.steps:
            groups[sequence.request.sampling.inference_timesteps].append(sequence)
        return InFlight([(group, self._step(group, timesteps)) for timesteps, group in groups.items()])

    @torch.inference_mode()
    def enter(self, batch: Batch) -> None:
        """All of a round but its steps: slots are opened and prompts entered. Doing it once more changes nothing."""
        if self._graphs is not None:
            self._graphs.join()  # a slot that is opened now may have been speaking until here
        self.slots.table(list(batch.sequences))
        if batch.opened:
            self.model.open(self.slots.open(batch.opened), self.slots.state)
        for sequence in batch.opened:
            if sequence.prompt.primer:
                assert sequence.slot is not None
                self.model.prime(sequence.slot, self.slots.state, sequence.prompt.primer)
        if batch.chunks:
            self._prefill(batch.chunks)

    @torch.inference_mode()
    def generated(self, sequence: Sequence) -> HostCopy:
        """The patches a sequence has delivered, float32 [steps, P, D]."""
        start = len(sequence.prompt.patches)
        history = self.slots.state.history[sequence.slot, start : start + sequence.delivered]
        return HostCopy(history.float().clone())

    def _prefill(self, chunks: list[Chunk]) -> None:
        packed, state = pack(chunks, self.kv.page_size), self.slots.state
        embedded = self.model.embed(packed.embed_rows(self.slots.device), state)
        if self._graphs is not None:
            self._graphs.prefill(embedded, packed)
            return
        flat = upload(torch.from_numpy(packed.padded(len(packed), len(chunks), 0)), self.slots.device)
        rows = prefill_rows(
            flat,
            len(packed),
            len(chunks),
            state,
            self.kv.page_size,
            longest=max(chunk.stop for chunk in chunks),
            fresh=all(chunk.start == 0 for chunk in chunks),
        )
        # Only as many sequences start to speak as there are; the padding of `last` must not reach a slot.
        speaking = len(packed.last)
        rows = replace(rows, last=rows.last[:speaking], last_slot=rows.last_slot[:speaking])
        self.model.prefill(embedded, rows, state, self.kv)

    def _step(self, group: list[Sequence], timesteps: int) -> HostCopy:
        """One frame for each of the group; its copy to the host does not wait for the language models."""
        slots = np.array([sequence.slot for sequence in group])
        if self._graphs is not None:
            return self._graphs.step(slots, timesteps)
        state = self.slots.state
        slot = upload(torch.from_numpy(slots), self.slots.device)
        longest = max(sequence.length for sequence in group)  # the launched step is counted already
        self.model.generate_patch(slot, timesteps, state)
        copy = HostCopy(pack_frame(self.model.decode_patch(slot, state)))
        self.model.advance(step_rows(slot, state, self.kv.page_size, longest), state, self.kv)
        return copy


def pack_frame(frame: Frame) -> Tensor:
    """All that the host reads of a frame, for one copy: float32 [b, samples + 2], the last two stop and finite."""
    return torch.cat([frame.audio, frame.stop[:, None], frame.finite[:, None]], dim=1)


@torch.inference_mode()
def working_memory(model: SpeechModel, slots: Slots, page_size: int, prefill_tokens: int, *, graphs: bool) -> int:
    """Bytes of GPU memory that steps, their graphs and codec jobs need beside weights, slots and KV cache.

    Measured on a step of all slots and the largest prefill, run on the scratch slot over a KV cache of one page, and
    on two seconds of audio. Graphs keep pools of that size of their own, codec jobs too.
    """
    device, state, info = slots.device, slots.state, model.info
    kv = allocate_kv(model.layout, 0, page_size, device)
    scratch = len(state.seed) - 1
    everyone = torch.full((scratch,), scratch, device=device)

    def step() -> None:
        model.step(step_rows(everyone, state, page_size, page_size), max(info.timesteps), state, kv)
        state.position[-1].zero_()

    def decode_patch() -> None:
        model.decode_patch(everyone, state)

    def prefill() -> None:
        flat = torch.from_numpy(pack([], page_size).padded(prefill_tokens, 1, scratch)).to(device)
        where = prefill_rows(flat, prefill_tokens, 1, state, page_size, page_size, fresh=False)
        tokens = torch.zeros(prefill_tokens, dtype=torch.int64, device=device)
        everything = EmbedRows(tokens, torch.arange(prefill_tokens, device=device), tokens + scratch, tokens)
        model.prefill(model.embed(everything, state), where, state, kv)

    def code() -> None:
        for latents in model.codec.encode(np.zeros(2 * info.input_sample_rate, np.float32), pad_left=False):
            for _ in model.codec.decode(latents.cpu().numpy()):
                pass

    streams, speaking, coding = (
        max(_peak(step, device), _peak(prefill, device)),
        _peak(decode_patch, device),
        _peak(code, device),
    )
    torch.cuda.empty_cache()  # graphs have pools of their own: what PyTorch keeps of this would be in nobody's use
    return streams + (streams + speaking if graphs else 0) + coding + LIBRARIES


def _peak(call: Callable[[], None], device: torch.device) -> int:
    """Bytes that a call takes at its height beside what is allocated before it."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


class _Graphs:
    """The captured parts of a step by batch size (and timestep count), and prefills by token count.

    Audio is made beside the language models, on a stream of its own that goes first.
    """

    @torch.inference_mode()
    def __init__(self, model: SpeechModel, slots: Slots, kv: PagedKV, prefill_tokens: int) -> None:
        self.slots = slots
        self.scratch = len(slots.state.seed) - 1
        state, device = slots.state, slots.device
        longest = state.block_table.shape[1] * kv.page_size
        self._padded = PaddedSlots(self.scratch, device)
        slot = self._padded.rows
        nothing = EmbedRows(*(torch.zeros(n, dtype=torch.int64, device=device) for n in (prefill_tokens, 0, 0, 0)))
        self._embedded = tuple(torch.zeros_like(part) for part in model.embed(nothing, state))
        self._flat = {
            count: torch.from_numpy(pack([], kv.page_size).padded(count, self._sequences(count), self.scratch)).to(
                device
            )
            for count in token_buckets(prefill_tokens)
        }

        def advance(count: int) -> None:
            state.position[-1].zero_()  # padding rows must not wander off the block table
            model.advance(step_rows(slot[:count], state, kv.page_size, longest), state, kv)

        def prefill(count: int) -> None:
            where = prefill_rows(
                self._flat[count], count, self._sequences(count), state, kv.page_size, longest, fresh=False
            )
            model.prefill(tuple(part[:count] for part in self._embedded), where, state, kv)

        steps, aside = GraphPool(Priority.STEP, device), GraphPool(Priority.AUDIO, device)
        sizes = batch_buckets(self.scratch)
        self._prefill = StepGraph(prefill, list(self._flat), steps)
        self._generate = {
            n: StepGraph(lambda count, n=n: model.generate_patch(slot[:count], n, state), sizes, steps)
            for n in model.info.timesteps
        }
        self._decode = StepGraph(lambda count: pack_frame(model.decode_patch(slot[:count], state)), sizes, aside)
        self._advance = StepGraph(advance, sizes, steps)
        self._aside = aside.stream

    def _sequences(self, tokens: int) -> int:
        """Most prompts that a prefill of so many rows can hold."""
        return min(tokens, self.scratch)

    def prefill(self, embedded: tuple[Tensor, ...], packed: PackedChunks) -> None:
        count = self._prefill.bucket(len(packed))
        padded = packed.padded(count, self._sequences(count), self.scratch)
        self._flat[count].copy_(upload(torch.from_numpy(padded), self.slots.device))
        for static, part in zip(self._embedded, embedded, strict=True):
            static[: len(packed)].copy_(part)
        self._prefill.replay(count)

    def join(self) -> None:
        """What is launched from here on runs after all audio asked for so far."""
        torch.cuda.current_stream().wait_stream(self._aside)

    def step(self, slots: np.ndarray, timesteps: int) -> HostCopy:
        self.join()
        count = len(slots)
        self._padded.put(slots, self._advance.bucket(count))
        self._generate[timesteps].replay(count)
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            copy = HostCopy(self._decode.replay(count)[:count])
        self._advance.replay(count)
        return copy
