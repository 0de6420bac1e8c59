"""The progress of one request in an engine. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from voxcpm_grpc.request import Request

if TYPE_CHECKING:
    from voxcpm_grpc.models.base import PromptRows


@dataclass(slots=True, eq=False)
class Sequence:
    """A request and its progress.

    `launched` steps may still run on the device; `delivered` steps have reached the host. Without credit a sequence is
    paused and keeps its slot.
    """

    request: Request
    prompt: PromptRows
    keys: list[bytes]
    credit: int  # steps that may still be launched
    max_steps: int
    queued_at: float  # monotonic time, as the other times
    admitted_at: float = 0.0
    slot: int | None = None
    pages: list[int] = field(default_factory=list)
    uploaded_pages: int = 0  # pages in the device's block table
    filled: int = 0  # KV positions that are written, or will be by launched work
    cached: int = 0  # positions found in the prefix cache at admission
    launched: int = 0
    delivered: int = 0
    first_audio_at: float | None = None  # when the first audio reached the host
    ended: bool = False

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def is_new(self) -> bool:
        """No audio of its stream has been sent so far."""
        return self.slot is None and not self.request.continues

    @property
    def length(self) -> int:
        """Positions that must be in the KV cache before the next step."""
        return len(self.prompt) + self.launched

    @property
    def prefilled(self) -> bool:
        return self.filled == self.length

    @property
    def can_step(self) -> bool:
        """Another step may be launched as soon as the context is in the cache."""
        return self.credit > 0 and self.launched < self.max_steps

    @property
    def paused(self) -> bool:
        """Another step needs more credit."""
        return self.credit <= 0 and self.launched < self.max_steps
