"""All CUDA graphs of an engine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from voxcpm_grpc import progress
from voxcpm_grpc.attention import PagedKV
from voxcpm_grpc.engine.device.graphs import (
    StepGraph,
    advance_buckets,
    entry_buckets,
    generate_buckets,
    intermediate,
    prime_buckets,
    token_buckets,
)
from voxcpm_grpc.engine.device.rows import PackedChunks, flat_sizes, prefill_rows, step_rows
from voxcpm_grpc.engine.device.slots import PaddedSlots, Slots
from voxcpm_grpc.engine.device.staging import Staging
from voxcpm_grpc.kernels.launch.graph import GraphPool, Priority
from voxcpm_grpc.kernels.launch.host_copy import HostCopy
from voxcpm_grpc.models.base import SpeechModel

T = TypeVar("T")


class StepParts:
    """The parts of a step on tensors that stay in place, for any slots whose indices are put there.

    encoded: the results of `encode`, at the rows of a prefill that are encoded; None if the model encodes none
    """

    def __init__(self, model: SpeechModel, slots: Slots, kv: PagedKV, prefill_tokens: int, staging: Staging) -> None:
        """Prefills read the result of `EngineGraphs.padded` from the start of the memory of `staging`."""
        self.scratch = slots.scratch
        self.slots = PaddedSlots(slots.scratch, slots.device)
        # Late audio is decoded while the next slots are put there.
        self.audio_slots = PaddedSlots(slots.scratch, slots.device) if model.late_audio else self.slots
        self.primed_slots = PaddedSlots(slots.scratch, slots.device)
        most = entry_buckets(prefill_tokens)[-1]
        # Slots and entries are the two rows.
        self.entries = torch.zeros(2, most, dtype=torch.int64, device=slots.device)
        self.decoded = torch.cuda.Event(external=True)  # the last audio is recorded, for parts that wait for it
        self._model, self._state, self._kv, self._memory = model, slots.state, kv, staging.memory
        self._longest = slots.state.block_table.shape[1] * kv.page_size
        self.encoded: Tensor | None = None
        if model.encodes:
            encoded = self.encode(1, adapted=False)
            self.encoded = encoded.new_zeros(prefill_tokens, *encoded.shape[1:])

    def sequences(self, tokens: int) -> int:
        """The largest number of sequences in a prefill of so many rows."""
        return min(tokens, self.scratch)

    def generate(self, count: int, variant: Hashable, *, adapted: bool) -> None:
        self._model.generate(self.slots.rows[:count], variant, self._state, adapted=adapted, decoded=self.decoded)

    def decode(self, count: int) -> Tensor:
        return self._model.decode(self.audio_slots.rows[:count], self._state).packed

    def prime(self, count: int) -> None:
        self._model.prime(self.primed_slots.rows[:count], self._state)

    def advance(self, count: int, *, adapted: bool) -> None:
        rows = step_rows(self.slots.rows[:count], self._state, self._kv.page_size, self._longest)
        self._model.advance(rows, self._state, self._kv, adapted=adapted, decoded=self.decoded)

    def prefill(self, count: int, *, adapted: bool) -> None:
        sequences, columns = self.sequences(count), self._model.columns
        flat = self._memory[: sum(flat_sizes(count, sequences, columns))]
        rows = prefill_rows(
            flat, count, sequences, columns, self._state, self._kv.page_size, self._longest, fresh=False
        )
        encoded = None if self.encoded is None else self.encoded[:count]
        self._model.prefill(rows, encoded, self._state, self._kv, adapted=adapted)

    def encode(self, count: int, *, adapted: bool) -> Tensor:
        return self._model.encode(self.entries[0, :count], self.entries[1, :count], self._state, adapted=adapted)


class EngineGraphs:
    """The captured parts of a step for each number of streams (and variant), and prefills for each token count.

    What adapters change is captured with and without them.

    Audio is decoded at the same time as the language models run, on a stream of its own with a higher priority. Late
    audio is also decoded while the next step is generated.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: SpeechModel,
        slots: Slots,
        kv: PagedKV,
        prefill_tokens: int,
        staging: Staging,
        *,
        some_later: bool = False,
    ) -> None:
        """Prefills read the result of `padded` from the start of the memory of `staging`.

        With `some_later`, intermediate sizes are left to `capture_next`, and larger ones serve until then.
        """
        self._parts = parts = StepParts(model, slots, kv, prefill_tokens, staging)
        self._late_flags = model.stop_flags(slots.state) if model.late_audio else None
        self.encoded = parts.encoded
        tokens, entries = token_buckets(prefill_tokens), entry_buckets(prefill_tokens) if model.encodes else []
        sizes, advanced = generate_buckets(parts.scratch), advance_buckets(parts.scratch)
        primed = prime_buckets(min(model.primed_at_once, parts.scratch))
        later = intermediate if some_later else _none
        kinds = (False, True) if model.banks else (False,)
        by_kind = [tokens, entries, advanced, *(sizes for _ in model.variants)] * len(kinds)
        count = sum(len(each) - len(later(each)) for each in (*by_kind, sizes)) + len(primed)
        captured = progress.counting("CUDA graphs are being captured", count)
        steps, audio = GraphPool(Priority.STEP, slots.device), GraphPool(Priority.AUDIO, slots.device)

        def capture(call: Callable[..., T], sizes: list[int], **options: Hashable) -> dict[bool, StepGraph[T]]:
            return {
                kind: StepGraph(partial(call, adapted=kind, **options), sizes, steps, captured, later(sizes))
                for kind in kinds
            }

        self._prefill = capture(parts.prefill, tokens)
        self._encode = capture(parts.encode, entries)
        self._generate = {one: capture(parts.generate, sizes, variant=one) for one in model.variants}
        self._decode = StepGraph(parts.decode, sizes, audio, captured, later(sizes))
        # Priming uses the memory of audio, because no audio is decoded beside it.
        self._prime = StepGraph(parts.prime, primed, audio, captured)
        self._audio_stream = audio.stream
        parts.decoded.record(audio.stream)  # captured kernels wait for its last record before the replay
        self._advance = capture(parts.advance, advanced)
        self.generated = torch.cuda.Event()  # the last steps were generated when it is recorded
        self.stop_flags: HostCopy | None = None  # of these steps, bool [slots], for a model with late audio
        # `_rows` and `padded` give the sizes of language models without adapters. Their graphs come last: a size that
        # has one then has a graph of it or of a smaller one in all other calls, and of the same one with adapters.
        generating = [graph for graphs in self._generate.values() for graph in graphs.values()]
        self._in_order: list[StepGraph[Any]] = [*generating, self._decode]
        for calls in (self._advance, self._prefill, self._encode):
            self._in_order += [calls[kind] for kind in reversed(kinds)]

    @property
    def complete(self) -> bool:
        """True if no graph is left for later."""
        return all(graph.complete for graph in self._in_order)

    @torch.inference_mode()
    def capture_next(self) -> None:
        """Capture a graph that was left for later."""
        next(graph for graph in self._in_order if not graph.complete).capture_next()

    def encode(self, slot: Tensor, entry: Tensor, *, adapted: bool) -> Tensor:
        """`SpeechModel.encode` of at most MAX_ENTRIES entries."""
        count = len(slot)
        slots, entries = self._parts.entries  # behind `count` are those of an earlier call; their results are not used
        slots[:count].copy_(slot)
        entries[:count].copy_(entry)
        return self._encode[adapted].replay(count)[:count].clone()

    def prime(self, slots: np.ndarray) -> None:
        """`SpeechModel.prime` of these slots. Call `wait_for_audio` first."""
        self._parts.primed_slots.put(slots, self._prime.bucket(len(slots)))
        self._prime.replay(len(slots))

    def padded(self, packed: PackedChunks) -> np.ndarray:
        """The rows of a prefill, with padding rows up to a captured size."""
        count = self._prefill[False].bucket(len(packed))
        return packed.padded(count, self._parts.sequences(count), self._parts.scratch)

    def prefill(self, count: int, *, adapted: bool) -> None:
        """Prefill `count` rows. The inputs of those that are encoded are in `encoded`."""
        self._prefill[adapted].replay(count)

    def _rows(self, count: int) -> int:
        """The padded number of `count` slots in a step: that of `advance`, no less than that of `generate`."""
        return self._advance[False].bucket(count)

    def wait_for_audio(self) -> None:
        """Order all later launches after the audio that was launched so far."""
        torch.cuda.current_stream().wait_stream(self._audio_stream)

    def generate(self, slots: np.ndarray, variant: Hashable, *, adapted: bool) -> HostCopy:
        """Generate and decode a step of these slots."""
        if self._late_flags is None:
            self.wait_for_audio()
        count = len(slots)
        self._parts.slots.put(slots, self._rows(count))
        self._generate[variant][adapted].replay(count)
        self.generated = torch.cuda.Event()
        self.generated.record()
        self._audio_stream.wait_event(self.generated)
        with torch.cuda.stream(self._audio_stream):
            if self._late_flags is not None:
                self.stop_flags = HostCopy(self._late_flags)
                self._parts.audio_slots.put(slots, self._decode.bucket(count))
            frames = self._decode.replay(count)
            self._parts.decoded.record()
            return HostCopy(frames[:count])

    def advance(self, slots: np.ndarray, *, adapted: bool) -> None:
        """Run the language models on what these slots have just generated."""
        size = self._rows(len(slots))
        if not self._parts.slots.holds(slots, size):
            if self._late_flags is None:
                self.wait_for_audio()  # it may still read other slots there
            self._parts.slots.put(slots, size)
        self._advance[adapted].replay(size)


def _none(_: Sequence[int]) -> set[int]:
    """The sizes that are left for later: none."""
    return set()
