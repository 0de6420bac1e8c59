"""The rules for recordings of voices: refused if no voice can be taken from them, doubted if only a poor one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from voxcpm_grpc.audio.formats import BadAudio
from voxcpm_grpc.audio.mixdown import Lost

MIN_SECONDS = 0.1
MIN_LEVEL = -60.0  # dB of full scale; quiet speech reaches -40, and the noise of a muted input stays below -70
QUIET_LEVEL = -40.0  # dB of full scale, which quiet speech reaches
MAX_OFFSET = 0.05  # the mean of the samples is at most so far from 0
MIN_GAIN = 1.0  # dB of an Opus header, from which on it is worth a word
# A length may be wrong by this: encoders add samples at both ends, and containers round.
SLACK_SECONDS, SLACK = 0.2, 0.01
FLOOR = 1e-10  # digital silence gets a level by it
FULL_SCALE = 0.999  # 16 bits reach it at 32735 of 32768
# The value was measured with recordings of tests/tools/speech: 0.002 % of the samples are at full scale when their peak
# is, and 0.10 to 0.22 % when their upper 2.5 dB are cut off.
MAX_CLIPPED = 0.001
# Loud and quiet frames are so far apart. The same recordings have 21 to 26 dB, and 7.1 dB or more in each second;
# with white noise 5 dB below the speech 8.4 to 10.3 dB, with as much noise as speech 4.7 to 6.3 dB. White noise alone
# has 1 dB.
MIN_RANGE = 7.0  # dB
MEASURED_SECONDS = 1.0  # a shorter recording may be one steady vowel
FRAME_SECONDS = 0.025
QUIET, LOUD, LOUDEST = 10, 90, 95  # percentiles of the levels of frames
SILENCE = 50.0  # dB below the loudest frames; pauses without any noise say nothing about it


class FlawKind(StrEnum):
    """The kind of a flaw."""

    SHORT = "short"
    CLIPPED = "clipped"
    NOISY = "noisy"
    TRUNCATED = "truncated"
    CHANNELS = "channels"
    LEVEL = "level"


@dataclass(frozen=True, slots=True)
class Flaw:
    """A flaw of a recording that is used nevertheless. `text` is a sentence whose subject is missing."""

    kind: FlawKind
    text: str


def check_voice(samples: np.ndarray, rate: int, gain: float = 0.0) -> None:
    """Refuse a recording from which no voice can be taken. Raises BadAudio.

    samples: float32 mono [n] at `rate` Hz
    gain: output gain in dB of the Opus header of the file, which the samples have
    """
    seconds = len(samples) / rate
    window = round(MIN_SECONDS * rate)
    if len(samples) < window:
        raise BadAudio(f"the audio lasts {seconds:.4f} s and the minimum is {MIN_SECONDS:g} s; send a longer recording")
    level = _decibels(_levels(samples, window).max())
    if level < MIN_LEVEL:
        raise BadAudio(
            f"the audio is silent: its loudest {1000 * MIN_SECONDS:g} ms reach {level:.0f} dBFS and the minimum is "
            f"{MIN_LEVEL:g} dBFS; {_gain_remedy(min(0.0, gain)) or 'send a louder recording'}"
        )


def flaws(samples: np.ndarray, rate: int, full_scale: float, gain: float = 0.0) -> tuple[Flaw, ...]:
    """The flaws in the sound of a recording that `check_voice` accepts.

    samples: float32 mono [n] at `rate` Hz
    full_scale: share of its samples at full scale before it was resampled
    gain: output gain in dB of the Opus header of the file, which the samples have
    """
    found: list[Flaw] = []
    if full_scale > MAX_CLIPPED:
        text = (
            f"is clipped: {full_scale:.1%} of its samples are at full scale and the limit is {MAX_CLIPPED:.1%}; "
            f"{_gain_remedy(max(0.0, gain)) or 'record it again at a lower level'}"
        )
        found.append(Flaw(FlawKind.CLIPPED, text))
    level = _decibels(_levels(samples, round(MIN_SECONDS * rate)).max())
    if level < QUIET_LEVEL and (remedy := _gain_remedy(min(0.0, gain))):  # a quiet recording alone is a good one
        text = f"is quiet: its loudest {1000 * MIN_SECONDS:g} ms reach {level:.0f} dBFS; {remedy}"
        found.append(Flaw(FlawKind.LEVEL, text))
    if (offset := abs(float(samples.mean(dtype=np.float64)))) > MAX_OFFSET:
        text = (
            f"has a constant offset: its mean is {offset:.0%} of full scale and the limit is {MAX_OFFSET:.0%}; remove "
            "it with a high-pass filter, or use another microphone input"
        )
        found.append(Flaw(FlawKind.LEVEL, text))
    if len(samples) >= MEASURED_SECONDS * rate and (range := _dynamic_range(samples, rate)) < MIN_RANGE:
        text = (
            f"is mostly noise: its loud parts are {range:.1f} dB above its quiet parts and speech needs {MIN_RANGE:g} "
            "dB; record it again in a quiet place"
        )
        found.append(Flaw(FlawKind.NOISY, text))
    return tuple(found)


def short_flaw(seconds: float, useful_seconds: float) -> Flaw | None:
    """The flaw of a recording that is shorter than a useful length; None if it is not."""
    if seconds >= useful_seconds:
        return None
    text = (
        f"is short: it lasts {seconds:.2f} s and at least {useful_seconds:g} s are useful; record 5 to 30 s of speech"
    )
    return Flaw(FlawKind.SHORT, text)


def truncated_flaw(seconds: float, promised: float, *, has_end: bool) -> Flaw | None:
    """The flaw of a recording of which its file promises more; None if it has all.

    promised: length in seconds that the file declares; 0 if it does not
    has_end: False if the format marks the end of a recording, and the mark is missing
    """
    if promised - seconds > max(SLACK_SECONDS, SLACK * promised):
        text = (
            f"is cut off or damaged: {seconds:.1f} s of the {promised:.1f} s that its file declares "
            f"({seconds / promised:.0%}) could be decoded; upload the whole file"
        )
    elif not has_end:
        text = f"is cut off: its file has no end after the {seconds:.1f} s that could be decoded; upload the whole file"
    else:
        return None
    return Flaw(FlawKind.TRUNCATED, text)


def channels_flaw(lost: Lost) -> Flaw | None:
    """The flaw of channels that cancel each other; None if most of them are silent, which takes nothing away."""
    if not lost.cancels:
        return None
    text = (
        f"has {lost.channels} channels that cancel each other: their mix is {lost.decibels:.0f} dB quieter; channel "
        f"{lost.channel + 1} alone is used; check the polarity of the cables, or record in mono"
    )
    return Flaw(FlawKind.CHANNELS, text)


def _gain_remedy(gain: float) -> str:
    """The remedy for a level that the Opus header of a file has changed; empty if it has not."""
    if abs(gain) < MIN_GAIN:
        return ""
    return f"the Opus header of the file changes the level by {gain:+.1f} dB (output gain): set that to 0"


def _dynamic_range(samples: np.ndarray, rate: int) -> float:
    """The difference between the levels of loud and of quiet frames in dB."""
    levels = _decibels(_levels(samples, round(FRAME_SECONDS * rate)))
    heard = levels[levels > np.percentile(levels, LOUDEST) - SILENCE]
    quiet, loud = np.percentile(heard, [QUIET, LOUD])
    return float(loud - quiet)


def _levels(samples: np.ndarray, window: int) -> np.ndarray:
    """The root mean square of each window, without its constant part."""
    windows = samples[: len(samples) // window * window].reshape(-1, window)
    return windows.std(axis=1, dtype=np.float64)


def _decibels(level: np.ndarray) -> np.ndarray:
    return 20 * np.log10(level + FLOOR)
