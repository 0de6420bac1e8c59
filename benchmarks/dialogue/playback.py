"""Delays and silences of a dialogue, from the times at which text was sent and audio arrived. Times are in seconds.

Playback begins with the first audio and goes on in real time. It stops while all audio that has arrived is played.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.dialogue.calls import Dialogue, Segment

INSIDE = {"clause", "limit"}  # reasons of a cut within a sentence


@dataclass(frozen=True, slots=True)
class Delay:
    """The delay from the end of the first sentence, or of the first segment if that is shorter, to the first audio.

    unavoidable: the part until the server can know that the sentence has ended: until the next word is sent, or until
    the server stops waiting for it. engine: the server's time from there to the first audio.
    """

    seconds: float
    unavoidable: float
    engine: float

    @property
    def overhead(self) -> float:
        """The rest of the delay. Negative if the server cut before the next word."""
        return self.seconds - self.unavoidable - self.engine


@dataclass(frozen=True, slots=True)
class Played:
    """Audio of one segment that is played from `begin` to `end`, after `silence` seconds without audio."""

    segment: int
    begin: float
    end: float
    silence: float


@dataclass(frozen=True, slots=True)
class Border:
    """The border between two segments.

    silence: seconds without audio there. late: the part of it after the server could know that the second segment has
    ended. inside: True inside a sentence, False between two.
    """

    silence: float
    late: float
    inside: bool


def delay(dialogue: Dialogue, max_wait: float) -> Delay:
    """The delay of a dialogue. max_wait: how long the server waits for more text; 0 for no limit."""
    end = min(dialogue.script.sentence_ends[0], _visible_end(dialogue, dialogue.segments[0].end))
    return Delay(
        seconds=dialogue.chunks[0].time - _sent(dialogue, end),
        unavoidable=_unavoidable(dialogue, end, max_wait),
        engine=dialogue.engine_seconds,
    )


def audio_after(dialogue: Dialogue, end: int, last: int) -> float:
    """Seconds from sending text[:end] to the first audio of the segment that holds the character before `last`."""
    segment = next(segment for segment in dialogue.segments if segment.end >= last)
    arrived = next(chunk.time for chunk in dialogue.chunks if chunk.segment == segment.index)
    return arrived - _sent(dialogue, end)


def first_audio_after(dialogue: Dialogue, end: int) -> float:
    """Seconds from sending text[:end] to the first audio of the dialogue; 0 if that was earlier."""
    return max(0.0, dialogue.chunks[0].time - _sent(dialogue, end))


def played(dialogue: Dialogue) -> list[Played]:
    """Each chunk, at the time at which it is played."""
    parts: list[Played] = []
    for chunk in dialogue.chunks:
        end = parts[-1].end if parts else chunk.time
        begin = max(end, chunk.time)
        parts.append(Played(chunk.segment, begin, begin + chunk.seconds, begin - end))
    return parts


def borders(dialogue: Dialogue, max_wait: float) -> list[Border]:
    """The border before each segment but the first. max_wait: as for `delay`."""
    segments = {segment.index: segment for segment in dialogue.segments}
    found = []
    for before, after in pairwise(played(dialogue)):
        if before.segment != after.segment:
            end = _visible_end(dialogue, segments[after.segment].end)
            known = _sent(dialogue, end) + _unavoidable(dialogue, end, max_wait)
            late = min(after.silence, max(0.0, after.begin - known))
            found.append(Border(after.silence, late, is_inside(dialogue, segments[before.segment])))
    return found


def underruns(dialogue: Dialogue) -> list[float]:
    """The length of each silence within a segment."""
    pairs = pairwise(played(dialogue))
    return [after.silence for before, after in pairs if before.segment == after.segment and after.silence]


def stretches(dialogue: Dialogue) -> Iterator[Played]:
    """Yield the chunks of one segment that are played without a silence between them as one."""
    current: Played | None = None
    for part in played(dialogue):
        if current and current.segment == part.segment and not part.silence:
            current = Played(current.segment, current.begin, part.end, current.silence)
        else:
            if current:
                yield current
            current = part
    if current:
        yield current


def wall(dialogue: Dialogue) -> float:
    """Seconds from the last character to the last audio."""
    return dialogue.chunks[-1].time - dialogue.sent[-1].time


def is_inside(dialogue: Dialogue, segment: Segment) -> bool:
    """True if a segment ends before its sentence does."""
    return segment.cut_reason in INSIDE or _visible_end(dialogue, segment.end) not in dialogue.script.sentence_ends


def _unavoidable(dialogue: Dialogue, end: int, max_wait: float) -> float:
    following = next((sent.time for sent in dialogue.sent if sent.end > end), dialogue.finished)
    return min(following - _sent(dialogue, end), max_wait or math.inf)


def _sent(dialogue: Dialogue, end: int) -> float:
    """When the character before offset `end` was sent."""
    return next(sent.time for sent in dialogue.sent if sent.end >= end)


def _visible_end(dialogue: Dialogue, end: int) -> int:
    """The offset after the last visible character before `end`; a space after it is sent with the next word."""
    return len(dialogue.script.text[:end].rstrip())
