"""The number of positions that a round prefills. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

FIXED_COST = 1600  # the fixed time of a round in positions: 10 ms at 6 us for each position, on an H200
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

    def round(self, waiting: int) -> int:
        """The budget of a round while so many positions wait."""
        best = (isqrt(waiting * FIXED_COST) + MULTIPLE // 2) // MULTIPLE * MULTIPLE
        return min(max(best, self.least), self.most)
