"""What waits between the tasks of a Generate stream: work for its speaker, output for its writer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voxcpm_server.wire.outputs import EndReason, Segment


@dataclass(frozen=True, slots=True)
class Flushed:
    tag: str


@dataclass(frozen=True, slots=True)
class End:
    """`reason`, if there is one, is the stream's; else that of its last segment is."""

    reason: EndReason | None = None


@dataclass(frozen=True, slots=True)
class Started:
    segment: Segment


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    segment: Segment
    samples: np.ndarray


@dataclass(frozen=True, slots=True)
class Ended:
    segment: Segment
    reason: EndReason


@dataclass(frozen=True, slots=True)
class Dropped:
    tag: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more is sent: the stream has failed or was cancelled."""


Work = Segment | Flushed | End
Output = Started | Spoken | Ended | Flushed | Dropped | End | Stop
