"""The work of a round. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from voxcpm_grpc.engine.adapters import Lora
from voxcpm_grpc.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Positions start..stop of a sequence, to be written to the KV cache.

    With `starts_generation` the last of them is the end of the prompt, or of what another engine has made, and its
    hidden states start the generation.
    """

    sequence: Sequence
    start: int
    stop: int
    starts_generation: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """One scheduling round: slots to save, open and restore, then chunks to prefill, then a step of `steps`.

    Adapters are written before all of that.
    """

    swapped_out: list[tuple[Sequence, int]] = field(default_factory=list)  # with the slots that they have given up
    opened: list[Sequence] = field(default_factory=list)
    restored: list[Sequence] = field(default_factory=list)  # that were swapped out
    loras: list[Lora] = field(default_factory=list)  # to be written to their places
    chunks: list[PrefillChunk] = field(default_factory=list)
    steps: list[Sequence] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.opened or self.restored or self.chunks or self.steps)

    @property
    def sequences(self) -> set[Sequence]:
        return {*self.opened, *self.restored, *(chunk.sequence for chunk in self.chunks), *self.steps}

    def prefills(self) -> Iterator[tuple[Sequence, Batch]]:
        """Each sequence that is opened, restored or prefilled, with this part of its work alone."""
        for sequence in {*self.opened, *self.restored, *(chunk.sequence for chunk in self.chunks)}:
            opened = [one for one in self.opened if one is sequence]
            restored = [one for one in self.restored if one is sequence]
            chunks = [chunk for chunk in self.chunks if chunk.sequence is sequence]
            yield sequence, Batch(opened=opened, restored=restored, loras=self.loras, chunks=chunks)
