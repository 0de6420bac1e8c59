"""The messages between a front and the process of its aligners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from voxcpm_server.aligners.aligner import Timed


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin the alignment `id`. rate: that of its samples, in Hz"""

    id: int
    words: Sequence[str]
    rate: int
    language: str


@dataclass(frozen=True, slots=True)
class Push:
    """More speech: float32 samples."""

    id: int
    samples: bytes


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of the speech."""

    id: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Drop:
    """End an alignment whose words nobody needs."""

    id: int


class Outcome(Enum):
    GOES_ON = "goes on"
    ENDED = "ended"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Found:
    """The reply to each message: the words that are certain now."""

    words: Sequence[Timed] = ()
    outcome: Outcome = Outcome.GOES_ON


Message = Begin | Push | Finish | Drop
