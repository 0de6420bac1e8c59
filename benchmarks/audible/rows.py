"""Rows of the table: one for each voice and mode, and where the speech of each voice begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.audible.calls import AUDIBLE_DBFS, Spoken, levels, onset
from benchmarks.measuring.statistics import quantile
from tools.voice import judge
from voxcpm_grpc.audio import resample

LEVELS = (-65, -60, -55, -50, -45, -40)  # in dBFS
BEGINNING = 2  # words
OPENING_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The sentences of a voice. Times are medians, and 95th percentiles, in ms.

    first: until the first audio arrives. heard: until the first sound is heard. silence: audio before the first sound.
    trimmed: audio that was not sent. late: streams whose playback runs out of audio. different: streams with other
    samples after the silence than the whole audio has. Word errors are a share of the words.
    """

    voice: str
    mode: str
    first_ms: float
    heard_ms: float
    heard_p95_ms: float
    silence_ms: float
    trimmed_ms: float
    trimmed_least_ms: float
    trimmed_most_ms: float
    late: int
    different: int
    word_errors: float
    beginning_errors: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Onsets:
    """The whole audio of a voice: the level of its first 20 ms in dBFS, and when it passes each of LEVELS, in ms."""

    voice: str
    opening: tuple[float, float, float]  # least, median, greatest
    passes: Mapping[int, tuple[float, float, float]]  # by level: least, median, greatest


def row(voice: str, mode: str, calls: Sequence[Spoken], whole: Sequence[Spoken], recognizer: judge.Recognizer) -> Row:
    """The row of the calls of a mode. whole: the same sentences with all their audio."""
    all_words, beginnings = judge.Errors(0, 0), judge.Errors(0, 0)
    for call in calls:
        transcript = recognizer.transcribe(_heard_by_recognizer(call))
        all_words += judge.word_errors(call.text, transcript)
        beginnings += _beginning_errors(call.text, transcript)
    trimmed = sorted(1e3 * call.summary.trimmed_samples / call.rate for call in calls)
    heard = sorted(1e3 * call.heard for call in calls)
    return Row(
        voice=voice,
        mode=mode,
        first_ms=_median([1e3 * call.first for call in calls]),
        heard_ms=_median(heard),
        heard_p95_ms=quantile(heard, 0.95),
        silence_ms=_median([1e3 * onset(call.samples, call.rate, AUDIBLE_DBFS) / call.rate for call in calls]),
        trimmed_ms=_median(trimmed),
        trimmed_least_ms=trimmed[0],
        trimmed_most_ms=trimmed[-1],
        late=sum(call.late for call in calls),
        different=sum(
            not np.array_equal(other.samples[call.summary.trimmed_samples :], call.samples)
            for call, other in zip(calls, whole, strict=True)
        ),
        word_errors=all_words.rate,
        beginning_errors=beginnings.rate,
    )


def onsets(voice: str, whole: Sequence[Spoken]) -> Onsets:
    """The begin of speech of a voice, from its whole audio."""
    windows = round(OPENING_SECONDS / 0.005)
    openings = [float(levels(call.samples, call.rate)[:windows].mean()) for call in whole]
    passes = {
        level: _spread([1e3 * onset(call.samples, call.rate, level) / call.rate for call in whole]) for level in LEVELS
    }
    return Onsets(voice=voice, opening=_spread(openings), passes=passes)


def _heard_by_recognizer(call: Spoken) -> np.ndarray:
    waveform = resample(call.samples, call.rate, 16000)
    return np.rint(np.clip(waveform, -1, 1) * 32767).astype(np.int16)


def _beginning_errors(text: str, transcript: str) -> judge.Errors:
    """Errors in the first words: with the beginning of the transcript that is nearest to them."""
    wanted, found = judge.words(text)[:BEGINNING], judge.words(transcript)
    edits = min(judge.edits(wanted, found[:count]) for count in range(min(len(found), 2 * BEGINNING) + 1))
    return judge.Errors(edits, len(wanted))


def _median(values: Sequence[float]) -> float:
    return quantile(sorted(values), 0.5)


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return ordered[0], quantile(ordered, 0.5), ordered[-1]
