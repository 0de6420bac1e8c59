"""What was said, and by whom: a recognizer's transcript, the pitch and the timbre of a recording.

Needs pocketsphinx, whose package brings its English model. Recordings are int16 mono samples at 16 kHz.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tools.voice.dataset import RATE

SILENCE = 0.2  # seconds put before and after, which the recognizer was made to expect
FRAME, HOP = 1024, 256  # samples
LOWEST, HIGHEST = 60, 400  # Hz of a voice
VOICED = 0.5  # of a frame's energy that its period must explain
BANDS = 32  # mel bands
LOUD = 0.1  # of the loudest frame's amplitude: frames that say something about a voice


@dataclass(frozen=True, slots=True)
class Errors:
    """Edits that turn what was heard into what was to be said, and what they are a share of."""

    edits: int
    length: int

    @property
    def rate(self) -> float:
        return self.edits / self.length

    def __add__(self, other: "Errors") -> "Errors":
        return Errors(self.edits + other.edits, self.length + other.length)


def word_errors(said: str, heard: str) -> Errors:
    wanted = _words(said)
    return Errors(edits(wanted, _words(heard)), len(wanted))


def character_errors(said: str, heard: str) -> Errors:
    """Of letters and the spaces between words; case and punctuation do not count."""
    wanted = " ".join(_words(said))
    return Errors(edits(wanted, " ".join(_words(heard))), len(wanted))


def edits(wanted: Sequence[str], got: Sequence[str]) -> int:
    """Least number of insertions, deletions and substitutions that make one into the other."""
    row = list(range(len(got) + 1))
    for i, want in enumerate(wanted, 1):
        diagonal, row[0] = row[0], i
        for j, have in enumerate(got, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (want != have))
    return row[-1]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


class Recognizer:
    """pocketsphinx with its own English model. What it hears does not depend on what it heard before."""

    def __init__(self) -> None:
        from pocketsphinx import Decoder  # not part of every installation

        # The bounds on hypotheses cost no accuracy on speech, and keep noise from taking several times as long.
        self._decoder = Decoder(loglevel="FATAL", samprate=RATE, maxhmmpf=3000, maxwpf=20)

    def transcribe(self, samples: np.ndarray) -> str:
        silence = np.zeros(round(SILENCE * RATE), np.int16)
        self._decoder.reinit_feat()  # forget the noise and the loudness of the last recording
        self._decoder.start_utt()
        self._decoder.process_raw(np.concatenate([silence, samples, silence]).tobytes(), full_utt=True)
        self._decoder.end_utt()
        best = self._decoder.hyp()
        return best.hypstr if best else ""


def pitch(samples: np.ndarray) -> float:
    """Median fundamental frequency in Hz of the voiced frames, by autocorrelation; nan if there are none."""
    frames = _frames(samples)
    frames = frames - frames.mean(1, keepdims=True)
    spectrum = np.abs(np.fft.rfft(frames * np.hanning(FRAME), 2 * FRAME)) ** 2
    window = np.fft.irfft(np.abs(np.fft.rfft(np.hanning(FRAME), 2 * FRAME)) ** 2)
    lags = np.fft.irfft(spectrum)[:, :FRAME] / (window[:FRAME] / window[0] + 1e-9)
    shortest, longest = RATE // HIGHEST, RATE // LOWEST
    likeness = lags[:, shortest : longest + 1] / np.maximum(lags[:, :1], 1e-9)
    # A period's multiples are as like as the period itself: the first lag that is nearly as good as the best one.
    first = (likeness > 0.9 * likeness.max(1, keepdims=True)).argmax(1)
    voiced = likeness.max(1) > VOICED
    return float(np.median(RATE / (shortest + first[voiced]))) if voiced.any() else float("nan")


def timbre(samples: np.ndarray) -> np.ndarray:
    """Mean and standard deviation over the loud frames of the log mel spectrum, loudness taken out: [2 * BANDS]."""
    power = np.abs(np.fft.rfft(_frames(samples) * np.hanning(FRAME))) ** 2
    bands = 10 * np.log10(power @ _mel_filters().T + 1e-3)
    bands = bands - bands.mean()
    return np.concatenate([bands.mean(0), bands.std(0)])


def _frames(samples: np.ndarray) -> np.ndarray:
    """The loud frames, [n, FRAME] in float64."""
    padded = np.pad(samples.astype(np.float64), (0, max(0, FRAME - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[::HOP]
    loud = np.sqrt((frames**2).mean(1))
    return frames[loud >= LOUD * loud.max()]


def _mel_filters() -> np.ndarray:
    """Triangles of equal width on the mel scale, 80 Hz to 7,600 Hz: [BANDS, FRAME // 2 + 1]."""
    lowest, highest = (2595 * math.log10(1 + hertz / 700) for hertz in (80, 7600))
    edges = 700 * (10 ** (np.linspace(lowest, highest, BANDS + 2) / 2595) - 1)
    at = np.fft.rfftfreq(FRAME, 1 / RATE)
    left, mid, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return np.clip(np.minimum((at - left) / (mid - left), (right - at) / (right - mid)), 0, None)


@dataclass(frozen=True, slots=True)
class Speaker:
    """What recordings of one speaker have in common."""

    pitch: float  # Hz
    timbre: np.ndarray


def profile(recordings: Sequence[np.ndarray]) -> Speaker:
    return Speaker(
        float(np.nanmedian([pitch(one) for one in recordings])), np.mean([timbre(one) for one in recordings], 0)
    )


def nearest_by_pitch(hertz: float, speakers: Mapping[str, Speaker]) -> str:
    """Name of the speaker whose pitch is fewest semitones away."""
    return min(speakers, key=lambda name: abs(np.log2(hertz / speakers[name].pitch)))


def nearest_by_timbre(what: np.ndarray, speakers: Mapping[str, Speaker]) -> str:
    """Name of the speaker whose spectrum is fewest decibels away, root mean square over bands."""
    return min(speakers, key=lambda name: float(np.mean((what - speakers[name].timbre) ** 2)))
