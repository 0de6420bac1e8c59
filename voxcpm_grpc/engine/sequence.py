"""One request's progress through an engine. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from voxcpm_grpc.request import Request

if TYPE_CHECKING:
    from voxcpm_grpc.models.base import PromptRows


@dataclass(slots=True, eq=False)
class Sequence:
    """Counts run ahead of the device: `launched` steps may still be under way, `delivered` ones have reached the host.

    `credit` is how many more steps the listener is ready to take; without credit a sequence rests in its slot.
    """

    request: Request
    prompt: PromptRows
    keys: list[bytes]
    credit: int
    max_steps: int
    arrived: float
    admitted: float = 0.0
    slot: int | None = None
    pages: list[int] = field(default_factory=list)
    tabled: int = 0  # pages that the device's block table knows
    filled: int = 0  # KV positions written, or about to be by what is launched
    cached: int = 0  # of these, found in the prefix cache at admission
    launched: int = 0
    delivered: int = 0
    speaking_since: float | None = None  # when the first chunk reached the host
    ended: bool = False

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def is_newcomer(self) -> bool:
        """Nobody has heard anything of its stream so far."""
        return self.slot is None and not self.request.continues

    @property
    def length(self) -> int:
        """Positions that must be in the KV cache before the next step."""
        return len(self.prompt) + self.launched

    @property
    def prefilled(self) -> bool:
        return self.filled == self.length

    @property
    def steppable(self) -> bool:
        """Wants another step as soon as its context is in the cache."""
        return self.credit > 0 and self.launched < self.max_steps

    @property
    def resting(self) -> bool:
        """Its listener takes nothing more for now."""
        return self.credit <= 0 and self.launched < self.max_steps
