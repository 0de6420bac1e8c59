"""All CUDA graphs of an engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from voxcpm_grpc import progress
from voxcpm_grpc.attention import PagedKV
from voxcpm_grpc.engine.graph import (
    StepGraph,
    advance_buckets,
    batch_buckets,
    intermediate,
    patch_buckets,
    token_buckets,
)
from voxcpm_grpc.engine.host_copy import HostCopy
from voxcpm_grpc.engine.rows import PackedChunks, flat_size, prefill_rows, step_rows
from voxcpm_grpc.engine.slots import PaddedSlots, Slots
from voxcpm_grpc.engine.staging import Staging
from voxcpm_grpc.kernels.graph import GraphPool, Priority
from voxcpm_grpc.models.base import SpeechModel

T = TypeVar("T")


class EngineGraphs:
    """The captured parts of a step for each batch size (and count of timesteps), and prefills for each token count.

    What adapters change is captured with and without them.

    Audio is decoded at the same time as the language models run, on a stream of its own with a higher priority.
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
        self.slots = slots
        self.scratch = len(slots.state.seed) - 1
        state, device = slots.state, slots.device
        longest = state.block_table.shape[1] * kv.page_size
        self._padded = PaddedSlots(self.scratch, device)
        slot = self._padded.rows
        patches = patch_buckets(prefill_tokens)
        self._history = torch.zeros(2, patches[-1], dtype=torch.int64, device=device)  # slots and patches to encode
        tokens = token_buckets(prefill_tokens)

        def generate(count: int, timesteps: int, *, adapted: bool) -> None:
            model.generate_patch(slot[:count], timesteps, state, adapted=adapted)

        def advance(count: int, *, adapted: bool) -> None:
            rows = step_rows(slot[:count], state, kv.page_size, longest)
            model.advance(rows, state, kv, adapted=adapted, decoded=self._decoded)

        def prefill(count: int, *, adapted: bool) -> None:
            sequences = self._sequences(count)
            flat = staging.memory[: flat_size(count, sequences)]
            rows = prefill_rows(flat, count, sequences, state, kv.page_size, longest, fresh=False)
            model.prefill(rows, self.encoded[:count], state, kv, adapted=adapted)

        def encode(count: int, *, adapted: bool) -> Tensor:
            return model.encode_history(self._history[0, :count], self._history[1, :count], state, adapted=adapted)

        encoded = encode(1, adapted=False)
        self.encoded = encoded.new_zeros(prefill_tokens, *encoded.shape[1:])  # at the audio rows of a prefill
        steps, audio = GraphPool(Priority.STEP, device), GraphPool(Priority.AUDIO, device)
        sizes, advanced = batch_buckets(self.scratch), advance_buckets(self.scratch)
        kinds = (False, True) if model.places else (False,)

        def later(sizes: list[int]) -> set[int]:
            return intermediate(sizes) if some_later else set()

        def now(sizes: list[int]) -> int:
            return len(sizes) - len(later(sizes))

        per_kind = now(tokens) + now(patches) + len(model.timesteps) * now(sizes) + now(advanced)
        graphs = len(kinds) * per_kind + now(sizes)
        captured = progress.counting("CUDA graphs are being captured", graphs)

        def capture(call: Callable[..., T], sizes: list[int], **options: int) -> dict[bool, StepGraph[T]]:
            return {
                kind: StepGraph(partial(call, adapted=kind, **options), sizes, steps, captured, later(sizes))
                for kind in kinds
            }

        self._prefill = capture(prefill, tokens)
        self._encode = capture(encode, patches)
        self._generate = {n: capture(generate, sizes, timesteps=n) for n in model.timesteps}
        self._decode = StepGraph(
            lambda count: model.decode_patch(slot[:count], state).packed, sizes, audio, captured, later(sizes)
        )
        self._audio_stream = audio.stream
        # After the last audio. Captured kernels wait for its last record before the replay.
        self._decoded = torch.cuda.Event(external=True)
        self._decoded.record(audio.stream)
        self._advance = capture(advance, advanced)
        self.generated = torch.cuda.Event()  # after the last patches
        # `_rows` and `padded` give the sizes of language models without adapters. These come last: what has such a size
        # then has a graph of it or of a smaller one in all other calls, and of the same one with adapters.
        generating = [graph for by_kind in self._generate.values() for graph in by_kind.values()]
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

    def _sequences(self, tokens: int) -> int:
        """The largest number of sequences in a prefill of so many rows."""
        return min(tokens, self.scratch)

    def encode(self, slot: Tensor, patch: Tensor, *, adapted: bool) -> Tensor:
        """`SpeechModel.encode_history` of at most MAX_PATCHES patches."""
        count = len(slot)
        self._history[0, :count].copy_(slot)  # what follows are patches of an earlier call, whose results are not used
        self._history[1, :count].copy_(patch)
        return self._encode[adapted].replay(count)[:count].clone()

    def padded(self, packed: PackedChunks) -> np.ndarray:
        """The rows of a prefill, with padding rows up to a captured size."""
        count = self._prefill[False].bucket(len(packed))
        return packed.padded(count, self._sequences(count), self.scratch)

    def prefill(self, count: int, *, adapted: bool) -> None:
        """Prefill `count` rows, whose encoded patches are in `encoded` at audio rows."""
        self._prefill[adapted].replay(count)

    def _rows(self, count: int) -> int:
        """The padded number of `count` slots in a step: that of the language models, no less than that of patches."""
        return self._advance[False].bucket(count)

    def wait_for_audio(self) -> None:
        """Order all later launches after the audio that was launched so far."""
        torch.cuda.current_stream().wait_stream(self._audio_stream)

    def generate(self, slots: np.ndarray, timesteps: int, *, adapted: bool) -> HostCopy:
        """Generate and decode a patch of these slots."""
        self.wait_for_audio()
        count = len(slots)
        self._padded.put(slots, self._rows(count))
        self._generate[timesteps][adapted].replay(count)
        self.generated = torch.cuda.Event()
        self.generated.record()
        self._audio_stream.wait_event(self.generated)
        with torch.cuda.stream(self._audio_stream):
            frames = self._decode.replay(count)
            self._decoded.record()
            return HostCopy(frames[:count])

    def advance(self, slots: np.ndarray, *, adapted: bool) -> None:
        """Run the language models on the patches that these slots have just generated."""
        size = self._rows(len(slots))
        if not self._padded.holds(slots, size):
            self.wait_for_audio()  # it may still read other slots there
            self._padded.put(slots, size)
        self._advance[adapted].replay(size)
