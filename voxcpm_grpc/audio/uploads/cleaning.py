"""Noise and silence removed from recordings of voices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from voxcpm_grpc.audio.codecs import check, load_av

REDUCTION_DB = 20  # dB of noise that are removed, at most
NOISE_FLOORS = -80.0, -20.0  # dB of full scale, the range of FFmpeg's filter
FRAME_SECONDS = 0.025
QUIET = 10  # this percentile of the levels of frames stands for the noise
CHUNK_SECONDS = 0.1
TOP_DB = 35.0  # dB, as in the official package
FRAME, HOP = 2048, 512  # samples
KEPT_SECONDS = 0.2  # seconds of silence at each end


@dataclass(frozen=True, slots=True)
class Cleaning:
    """Changes of a recording before it is encoded.

    denoise: reduce steady noise
    trim_silence: cut the silence at both ends down to 0.2 s
    """

    denoise: bool = False
    trim_silence: bool = False

    def check(self) -> None:
        """Raise FailedPrecondition if a package is missing."""
        if self.denoise:
            check("remove noise from recordings")


NO_CLEANING = Cleaning()


def clean(samples: np.ndarray, rate: int, cleaning: Cleaning) -> np.ndarray:
    """The recording with these changes, float32 mono [n] at `rate` Hz."""
    if cleaning.denoise:
        samples = denoised(samples, rate)
    return trimmed(samples, rate) if cleaning.trim_silence else samples


def denoised(samples: np.ndarray, rate: int) -> np.ndarray:
    """The recording with up to 20 dB less steady noise, of the same length, by FFmpeg's `afftdn`.

    The level of the noise is that of the quietest tenth of the frames.
    """
    av = load_av()
    frame = max(1, int(FRAME_SECONDS * rate))
    count = len(samples) // frame
    if not count:
        return samples
    power = np.square(samples[: count * frame], dtype=np.float64).reshape(count, frame).mean(axis=1)
    floor = float(np.clip(np.percentile(10 * np.log10(power + 1e-12), QUIET), *NOISE_FLOORS))
    graph = av.filter.Graph()
    source = graph.add_abuffer(sample_rate=rate, format="flt", layout="mono", time_base=f"1/{rate}")
    filters = [
        graph.add("afftdn", f"nr={REDUCTION_DB}:nf={floor:.1f}"),
        graph.add("aformat", "sample_fmts=flt"),
        graph.add("abuffersink"),
    ]
    for one, following in zip([source, *filters], filters, strict=False):
        one.link_to(following)
    graph.configure()
    parts: list[np.ndarray] = []
    chunk, delay = max(1, int(CHUNK_SECONDS * rate)), 2 * (rate // 80)  # the filter has this delay, at every rate
    longer = np.pad(np.asarray(samples, np.float32), (0, delay))
    for start in range(0, len(longer), chunk):
        part = np.ascontiguousarray(longer[None, start : start + chunk])
        given = av.AudioFrame.from_ndarray(part, format="flt", layout="mono")
        given.sample_rate, given.pts = rate, start
        source.push(given)
        parts += _ready(av, filters[-1])
    source.push(None)
    made = np.concatenate([*parts, *_ready(av, filters[-1])])[delay : delay + len(samples)]
    return np.pad(made, (0, len(samples) - len(made))).astype(np.float32, copy=False)


def _ready(av: Any, sink: Any) -> list[np.ndarray]:
    parts: list[np.ndarray] = []
    while True:
        try:
            parts.append(sink.pull().to_ndarray().reshape(-1))
        except (av.error.BlockingIOError, av.error.EOFError):
            return parts


def trimmed(samples: np.ndarray, rate: int) -> np.ndarray:
    """The recording without silence at its ends but 0.2 s, as the official package's `trim_silence_vad` cuts it.

    Frames of 2,048 samples are silent whose level is 35 dB below that of the loudest one; at the end also those 35 dB
    below the peak.
    """
    if not len(samples) or not np.abs(samples).max() > 0:
        return samples
    padded = np.pad(samples, FRAME // 2)
    levels = np.maximum(_levels(padded), 1e-5)  # each position has the levels of the frames around it
    loud = np.flatnonzero(20 * np.log10(levels) > 20 * np.log10(levels.max()) - TOP_DB)
    start, end = int(loud[0]) * HOP, min(len(samples), (int(loud[-1]) + 1) * HOP)
    voiced = np.flatnonzero(_levels(samples) >= np.abs(samples).max() * 10 ** (-TOP_DB / 20))
    if len(voiced):
        end = min(end, (int(voiced[-1]) + 1) * HOP + FRAME - HOP)
    kept = int(KEPT_SECONDS * rate)
    return samples[max(0, start - kept) : min(len(samples), end + kept)]


def _levels(samples: np.ndarray) -> np.ndarray:
    """The levels (root mean square) of the frames that begin at each hop, float64 [frames]."""
    if len(samples) < FRAME:
        return np.zeros(0)
    sums = np.concatenate([[0.0], np.cumsum(np.square(samples, dtype=np.float64))])
    starts = np.arange(0, len(samples) - FRAME + 1, HOP)
    return np.sqrt(np.maximum(0.0, sums[starts + FRAME] - sums[starts]) / FRAME)
