"""Rows of the table: one for each schedule and number of streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.dialogue import playback
from benchmarks.dialogue.calls import Dialogue
from benchmarks.measuring.statistics import quantile
from benchmarks.pages.markdown import ms

OVERHEAD_MS = 20.0  # goal: no delay has more
LONG_MS = 100.0  # a listener notices a longer silence


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The distribution of a time, in ms; None if `count` is 0."""

    count: int
    p50_ms: float | None
    p95_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The silence at the borders of one kind. `late` is the server's part of it."""

    all: Times
    late: Times
    long_share: float | None  # of the borders, 0 to 1: those with more than LONG_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One schedule at one number of streams.

    dialogues: those that succeeded. codes: failed calls by status. cuts: segments by the reason of the cut at their
    end, where the server sent one. overhead_above: dialogues with more than OVERHEAD_MS.
    """

    schedule: str
    streams: int
    dialogues: int
    codes: dict[str, int]
    delay: Times
    unavoidable: Times
    engine: Times
    server_text_to_audio: Times
    overhead: Times
    overhead_above: int
    inside: Silence
    between: Silence
    underruns: Times
    wall: Times
    segments: int
    cuts: dict[str, int]
    sending_lag_p99_ms: float | None


def row(schedule: str, streams: int, dialogues: Sequence[Dialogue], max_wait: float) -> Row:
    """The row of a load. Failed dialogues add to `codes` and to the sending lag only."""
    good = [dialogue for dialogue in dialogues if dialogue.code == "OK"]
    delays = [playback.delay(dialogue, max_wait) for dialogue in good]
    borders = [border for dialogue in good for border in playback.borders(dialogue, max_wait)]
    segments = [segment for dialogue in good for segment in dialogue.segments]
    server = [dialogue.server_seconds for dialogue in good if dialogue.server_seconds is not None]
    lags = sorted(sent.time - sent.due for dialogue in dialogues for sent in dialogue.sent)
    return Row(
        schedule=schedule,
        streams=streams,
        dialogues=len(good),
        codes=dict(Counter(dialogue.code for dialogue in dialogues if dialogue.code != "OK")),
        delay=times(delay.seconds for delay in delays),
        unavoidable=times(delay.unavoidable for delay in delays),
        engine=times(delay.engine for delay in delays),
        server_text_to_audio=times(server),
        overhead=times(delay.overhead for delay in delays),
        overhead_above=sum(delay.overhead * 1e3 > OVERHEAD_MS for delay in delays),
        inside=silence([border for border in borders if border.inside]),
        between=silence([border for border in borders if not border.inside]),
        underruns=times(seconds for dialogue in good for seconds in playback.underruns(dialogue)),
        wall=times(playback.wall(dialogue) for dialogue in good),
        segments=len(segments),
        cuts=dict(Counter(segment.cut_reason for segment in segments if segment.cut_reason)),
        sending_lag_p99_ms=quantile(lags, 0.99) * 1e3 if lags else None,
    )


def times(seconds: Iterable[float]) -> Times:
    """The distribution of times in seconds."""
    found = sorted(1e3 * one for one in seconds)
    p50, p95, most = (quantile(found, q) if found else None for q in (0.5, 0.95, 1.0))
    return Times(count=len(found), p50_ms=p50, p95_ms=p95, max_ms=most)


def silence(borders: Sequence[playback.Border]) -> Silence:
    """The silence at some borders."""
    many = sum(border.silence * 1e3 > LONG_MS for border in borders)
    return Silence(
        all=times(border.silence for border in borders),
        late=times(border.late for border in borders),
        long_share=many / len(borders) if borders else None,
    )


def example(schedule: str, streams: int, dialogue: Dialogue) -> dict[str, Any]:
    """A dialogue as data for the picture. Times are in seconds since its first word."""
    begin = dialogue.sent[0].time
    parts, before = [], None
    for part in playback.stretches(dialogue):
        silence = ""
        if before:
            segment = next(one for one in dialogue.segments if one.index == before.segment)
            within = "inside" if playback.is_inside(dialogue, segment) else "between"
            silence = "underrun" if part.segment == before.segment else within
        parts.append({"segment": part.segment, "begin": part.begin - begin, "end": part.end - begin})
        parts[-1] |= {"silence": silence, "silence_s": part.silence}
        before = part
    ends = set(dialogue.script.sentence_ends)
    words = [{"at": sent.time - begin, "ends_sentence": sent.end in ends} for sent in dialogue.sent]
    return {"schedule": schedule, "streams": streams, "words": words, "played": parts}


HEADINGS = (
    f"{'words/s':>7} {'streams':>7} {'calls':>5} {'fail':>4} |{'delay p50':>9} {'p95':>6} {'wait':>6} {'engine':>6}"
    f" {'overhead':>8} {'p95':>6} {'max':>6} {'>20ms':>5} |{'inside':>6} {'p50':>6} {'p95':>6} {'max':>6} {'>100':>5}"
    f" {'late':>6} |{'between':>7} {'p50':>6} {'p95':>6} {'max':>6} {'>100':>5} {'late':>6} |{'gaps':>4} {'wall':>6}"
    f" {'lag':>6}"
)


def line(row: Row) -> str:
    """A row under HEADINGS. Times are in ms; `late` is a p95 and `lag` a p99."""

    def gaps(one: Silence, width: int) -> str:
        values = " ".join(f"{ms(value):>6}" for value in (one.all.p50_ms, one.all.p95_ms, one.all.max_ms))
        share = "-" if one.long_share is None else f"{one.long_share:.0%}"
        return f"{one.all.count:{width}d} {values} {share:>5} {ms(one.late.p95_ms):>6}"

    return (
        f"{row.schedule:>7} {row.streams:7d} {row.dialogues:5d} {sum(row.codes.values()):4d} |"
        f"{ms(row.delay.p50_ms):>9} {ms(row.delay.p95_ms):>6} {ms(row.unavoidable.p50_ms):>6}"
        f" {ms(row.engine.p50_ms):>6} {ms(row.overhead.p50_ms):>8} {ms(row.overhead.p95_ms):>6}"
        f" {ms(row.overhead.max_ms):>6} {row.overhead_above:5d} |{gaps(row.inside, 6)} |{gaps(row.between, 7)} |"
        f"{row.underruns.count:4d} {ms(row.wall.p50_ms):>6} {ms(row.sending_lag_p99_ms):>6}"
    )
