"""The rules for recordings of voices: refused if no voice can be taken from them, doubted if only a poor one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from voxcpm_grpc.audio.formats import BadAudio

MIN_SECONDS = 0.1
MIN_LEVEL = -60.0  # dB of full scale; quiet speech reaches -40, and the noise of a muted input stays below -70
FLOOR = 1e-10  # gives digital silence a level
FULL_SCALE = 0.999  # 32735 of 32768 with 16 bits
# Measured with the recordings of the bundled voice and of its judge: 0.003 to 0.007 % of the samples are at full scale
# when their peak is, and 0.12 to 0.8 % when their upper 1.6 dB are cut off.
MAX_CLIPPED = 0.001
# The range between loud and quiet frames. The same recordings have 25 to 37 dB, and 8 dB or more in each second; with
# white noise 5 dB below the speech 9 dB, with as much noise as speech 5 to 5.5 dB. White noise alone has 1 dB.
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


@dataclass(frozen=True, slots=True)
class Flaw:
    """A flaw of a recording that is used nevertheless. `text` is a sentence whose subject is missing."""

    kind: FlawKind
    text: str


def check_voice(samples: np.ndarray, rate: int) -> None:
    """Refuse a recording from which no voice can be taken. Raises BadAudio.

    samples: float32 mono [n] at `rate` Hz
    """
    seconds = len(samples) / rate
    window = round(MIN_SECONDS * rate)
    if len(samples) < window:
        raise BadAudio(f"the audio lasts {seconds:.4f} s and the minimum is {MIN_SECONDS:g} s; send a longer recording")
    level = _decibels(_levels(samples, window).max())
    if level < MIN_LEVEL:
        raise BadAudio(
            f"the audio is silent: its loudest {1000 * MIN_SECONDS:g} ms reach {level:.0f} dBFS and the minimum is "
            f"{MIN_LEVEL:g} dBFS; send a louder recording"
        )


def flaws(samples: np.ndarray, rate: int, full_scale: float) -> tuple[Flaw, ...]:
    """The flaws in the sound of a recording that `check_voice` accepts.

    samples: float32 mono [n] at `rate` Hz
    full_scale: share of its samples at full scale before it was resampled
    """
    found: list[Flaw] = []
    if full_scale > MAX_CLIPPED:
        text = (
            f"is clipped: {full_scale:.1%} of its samples are at full scale and the limit is {MAX_CLIPPED:.1%}; record "
            "it again at a lower level"
        )
        found.append(Flaw(FlawKind.CLIPPED, text))
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
