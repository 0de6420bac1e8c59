"""The work of a round, and the number of positions that it prefills. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isqrt

from voxcpm_grpc.engine.scheduling.adapters import Lora
from voxcpm_grpc.engine.scheduling.sequence import Sequence

FIXED_COST = 1600  # positions that take the fixed time of a round: 10 ms at 6 us for each position, on an H200
MULTIPLE = 256  # large budgets are multiples of it, as the sizes of captured prefills are


@dataclass(frozen=True, slots=True)
class PrefillBudget:
    """The minimum and the maximum of the positions that are prefilled in one round.

    A round takes a fixed time, including the step that generates the first audio, and a time for each position. The
    positions of a round wait until it ends, the other positions wait for the whole round. For n positions the mean wait
    is shortest with rounds of sqrt(n * fixed time / time of a position) positions.
    """

    least: int
    most: int

    def positions(self, waiting: int) -> int:
        """The positions of a round while so many wait."""
        best = (isqrt(waiting * FIXED_COST) + MULTIPLE // 2) // MULTIPLE * MULTIPLE
        return min(max(best, self.least), self.most)


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
class Round:
    """One scheduling round: slots to save, open and restore, then chunks to prefill, then a step of `steps`.

    Adapters are written before all of that.
    """

    # Each comes with the slot that it has given up.
    swapped_out: list[tuple[Sequence, int]] = field(default_factory=list)
    opened: list[Sequence] = field(default_factory=list)
    restored: list[Sequence] = field(default_factory=list)  # these were swapped out
    loras: list[Lora] = field(default_factory=list)  # these are written to their banks
    chunks: list[PrefillChunk] = field(default_factory=list)
    steps: list[Sequence] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.opened or self.restored or self.chunks or self.steps)

    @property
    def sequences(self) -> set[Sequence]:
        return {*self.opened, *self.restored, *(chunk.sequence for chunk in self.chunks), *self.steps}

    def prefills(self) -> Iterator[tuple[Sequence, Round]]:
        """Each sequence that is opened, restored or prefilled, with this part of its work alone."""
        for sequence in {*self.opened, *self.restored, *(chunk.sequence for chunk in self.chunks)}:
            opened = [one for one in self.opened if one is sequence]
            restored = [one for one in self.restored if one is sequence]
            chunks = [chunk for chunk in self.chunks if chunk.sequence is sequence]
            yield sequence, Round(opened=opened, restored=restored, loras=self.loras, chunks=chunks)
