"""Delays and silences of a dialogue, from when its text was sent and its audio arrived. Times are in seconds.

A listener begins playback with the first audio; it goes on in real time and stands still where the audio that has
arrived is used up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.dialogue_calls import Dialogue, Segment

INSIDE = {"clause", "limit"}  # reasons for a cut within a sentence


@dataclass(frozen=True, slots=True)
class Delay:
    """From the last character of the first sentence, or of the first segment if that is shorter, to the first audio.

    `unavoidable` is how much later the server could be sure of the cut: with the next word, or when it has waited for
    that for as long as it does. `engine` is the server's time from there to the first audio.
    """

    seconds: float
    unavoidable: float
    engine: float

    @property
    def overhead(self) -> float:
        """The rest of the delay. Below 0 if the server was sure of the cut before the next word."""
        return self.seconds - self.unavoidable - self.engine


@dataclass(frozen=True, slots=True)
class Played:
    """Audio of one segment as it is heard from `begin` to `end`, after playback was dry for `dry` seconds."""

    segment: int
    begin: float
    end: float
    dry: float


@dataclass(frozen=True, slots=True)
class Border:
    """Between two segments: how long playback is dry there, and how much of that lies after the time at which the
    server could be sure of the second segment. `inside` a sentence, or between two."""

    silence: float
    late: float
    inside: bool


def delay(dialogue: Dialogue, max_wait: float) -> Delay:
    """`max_wait` is how long the server waits for more text, 0 for as long as it takes."""
    end = min(dialogue.script.sentence_ends[0], _visible_end(dialogue, dialogue.segments[0].end))
    return Delay(
        seconds=dialogue.pieces[0].time - _sent(dialogue, end),
        unavoidable=_unavoidable(dialogue, end, max_wait),
        engine=dialogue.engine_seconds,
    )


def played(dialogue: Dialogue) -> list[Played]:
    """Each piece of audio on the listener's clock."""
    heard: list[Played] = []
    for piece in dialogue.pieces:
        end = heard[-1].end if heard else piece.time
        begin = max(end, piece.time)
        heard.append(Played(piece.segment, begin, begin + piece.seconds, begin - end))
    return heard


def borders(dialogue: Dialogue, max_wait: float) -> list[Border]:
    """One for each segment but the first."""
    segments = {segment.index: segment for segment in dialogue.segments}
    found = []
    for before, after in pairwise(played(dialogue)):
        if before.segment != after.segment:
            end = _visible_end(dialogue, segments[after.segment].end)
            sure = _sent(dialogue, end) + _unavoidable(dialogue, end, max_wait)
            late = min(after.dry, max(0.0, after.begin - sure))
            found.append(Border(after.dry, late, is_inside(dialogue, segments[before.segment])))
    return found


def underruns(dialogue: Dialogue) -> list[float]:
    """How long playback was dry within a segment, each time that it was."""
    return [after.dry for before, after in pairwise(played(dialogue)) if before.segment == after.segment and after.dry]


def stretches(dialogue: Dialogue) -> Iterator[Played]:
    """Audio of one segment that is heard without a break."""
    current: Played | None = None
    for piece in played(dialogue):
        if current and current.segment == piece.segment and not piece.dry:
            current = Played(current.segment, current.begin, piece.end, current.dry)
        else:
            if current:
                yield current
            current = piece
    if current:
        yield current


def wall(dialogue: Dialogue) -> float:
    """From the last character to the last audio."""
    return dialogue.pieces[-1].time - dialogue.sent[-1].time


def is_inside(dialogue: Dialogue, segment: Segment) -> bool:
    """True if a segment ends before its sentence does."""
    return segment.cut_reason in INSIDE or _visible_end(dialogue, segment.end) not in dialogue.script.sentence_ends


def _unavoidable(dialogue: Dialogue, end: int, max_wait: float) -> float:
    following = next((sent.time for sent in dialogue.sent if sent.end > end), dialogue.finished)
    return min(following - _sent(dialogue, end), max_wait or math.inf)


def _sent(dialogue: Dialogue, end: int) -> float:
    """When the character before position `end` was sent."""
    return next(sent.time for sent in dialogue.sent if sent.end >= end)


def _visible_end(dialogue: Dialogue, end: int) -> int:
    """`end` without the white space before it: a space after a full stop belongs to the next word's message."""
    return len(dialogue.script.text[:end].rstrip())
