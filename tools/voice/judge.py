"""Measurements of a recording: the recognizer's transcript, word errors, pitch and timbre.

Needs pocketsphinx, whose package contains an English model. Recordings are int16 mono samples at 16 kHz; `heard` makes
them of others, with soxr.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RATE = 16_000  # samples per second that the judges hear
SILENCE = 0.2  # seconds before and after a recording, which the recognizer expects
FRAME, HOP = 1024, 256  # samples
LOWEST, HIGHEST = 60, 400  # Hz of a voice
VOICED = 0.5  # least share of a voiced frame's energy that repeats with its period
BANDS = 32  # mel bands
LOUD = 0.1  # least amplitude of a loud frame, over that of the loudest; other frames are ignored


@dataclass(frozen=True, slots=True)
class Errors:
    """The edits that turn a transcript into the text, and the length of the text."""

    edits: int
    length: int

    @property
    def rate(self) -> float:
        return self.edits / self.length

    def __add__(self, other: "Errors") -> "Errors":
        return Errors(self.edits + other.edits, self.length + other.length)


def heard(samples: np.ndarray, rate: int) -> np.ndarray:
    """The samples at RATE. rate: of the samples given."""
    import soxr  # not part of every installation

    if rate == RATE:
        return samples
    resampled = soxr.resample(np.asarray(samples, np.float32), rate, RATE)  # of integers, it would add a dither
    return np.rint(resampled).clip(-32768, 32767).astype(np.int16)


def word_errors(text: str, transcript: str) -> Errors:
    wanted = words(text)
    return Errors(edits(wanted, words(transcript)), len(wanted))


def character_errors(text: str, transcript: str) -> Errors:
    """The errors in letters and in spaces between words, without case and punctuation."""
    wanted = " ".join(words(text))
    return Errors(edits(wanted, " ".join(words(transcript))), len(wanted))


def edits(wanted: Sequence[str], got: Sequence[str]) -> int:
    """The least number of insertions, deletions and substitutions that turn one into the other."""
    row = list(range(len(got) + 1))
    for i, want in enumerate(wanted, 1):
        diagonal, row[0] = row[0], i
        for j, have in enumerate(got, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (want != have))
    return row[-1]


def words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return re.findall(r"[a-z0-9']+", text.lower())


class Recognizer:
    """pocketsphinx with its own English model. A transcript does not depend on earlier recordings."""

    def __init__(self) -> None:
        from pocketsphinx import Decoder  # not part of every installation

        # The limits on hypotheses do not change the transcripts of speech, but save most of the time for noise.
        self._decoder = Decoder(loglevel="FATAL", samprate=RATE, maxhmmpf=3000, maxwpf=20)

    def transcribe(self, samples: np.ndarray) -> str:
        """The words in a recording."""
        silence = np.zeros(round(SILENCE * RATE), np.int16)
        self._decoder.reinit_feat()  # drop the noise and loudness of the last recording
        self._decoder.start_utt()
        self._decoder.process_raw(np.concatenate([silence, samples, silence]).tobytes(), full_utt=True)
        self._decoder.end_utt()
        best = self._decoder.hyp()
        return best.hypstr if best else ""


def pitch(samples: np.ndarray) -> float:
    """The median fundamental frequency of the voiced frames in Hz, by autocorrelation; nan if there are none."""
    frames = _frames(samples)
    frames = frames - frames.mean(1, keepdims=True)
    spectrum = np.abs(np.fft.rfft(frames * np.hanning(FRAME), 2 * FRAME)) ** 2
    window = np.fft.irfft(np.abs(np.fft.rfft(np.hanning(FRAME), 2 * FRAME)) ** 2)
    lags = np.fft.irfft(spectrum)[:, :FRAME] / (window[:FRAME] / window[0] + 1e-9)
    shortest, longest = RATE // HIGHEST, RATE // LOWEST
    likeness = lags[:, shortest : longest + 1] / np.maximum(lags[:, :1], 1e-9)
    # Multiples of the period correlate as well as the period, so take the first lag that is nearly as good as the best.
    first = (likeness > 0.9 * likeness.max(1, keepdims=True)).argmax(1)
    voiced = likeness.max(1) > VOICED
    return float(np.median(RATE / (shortest + first[voiced]))) if voiced.any() else float("nan")


def timbre(samples: np.ndarray) -> np.ndarray:
    """Mean and standard deviation of the loud frames' log mel spectrum, without the loudness: [2 * BANDS]."""
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
    """Triangular filters of equal width on the mel scale, 80 Hz to 7,600 Hz: [BANDS, FRAME // 2 + 1]."""
    lowest, highest = (2595 * math.log10(1 + hertz / 700) for hertz in (80, 7600))
    edges = 700 * (10 ** (np.linspace(lowest, highest, BANDS + 2) / 2595) - 1)
    at = np.fft.rfftfreq(FRAME, 1 / RATE)
    left, mid, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return np.clip(np.minimum((at - left) / (mid - left), (right - at) / (right - mid)), 0, None)


@dataclass(frozen=True, slots=True)
class Speaker:
    """The mean measurements of one speaker."""

    pitch: float  # Hz
    timbre: np.ndarray


def profile(recordings: Sequence[np.ndarray]) -> Speaker:
    """The speaker of some recordings."""
    return Speaker(
        float(np.nanmedian([pitch(one) for one in recordings])), np.mean([timbre(one) for one in recordings], 0)
    )


def nearest_by_pitch(hertz: float, speakers: Mapping[str, Speaker]) -> str:
    """The name of the speaker with the least difference in pitch, in semitones."""
    return min(speakers, key=lambda name: abs(np.log2(hertz / speakers[name].pitch)))


def nearest_by_timbre(measured: np.ndarray, speakers: Mapping[str, Speaker]) -> str:
    """The name of the speaker with the least difference in spectrum, in dB, root mean square over bands."""
    return min(speakers, key=lambda name: float(np.mean((measured - speakers[name].timbre) ** 2)))
