"""Calls of one sentence, as a listener hears them who plays audio as soon as it arrives."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from voxcpm_client import Client, SpeechOptions, Summary

WINDOW_SECONDS = 0.005
AUDIBLE_DBFS = -45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """The audio of a call, float32 [n] at `rate`.

    first, heard: seconds from the start of the call until its first audio arrives, and until its first sound is heard
    late: True if the playback runs out of audio
    """

    text: str
    samples: np.ndarray
    rate: int
    first: float
    heard: float
    late: bool
    summary: Summary


def speak(client: Client, text: str, *, voice: str, seed: int, trim: float | None) -> Spoken:
    """Make a call. trim: the option trim_leading_silence; None for the default of the server. Raises SpeechError."""
    options: SpeechOptions = {"voice": voice, "seed": seed, "format": "pcm_f32le", "segmentation": "manual"}
    if trim is not None:
        options["trim_leading_silence"] = trim
    parts: list[tuple[float, np.ndarray]] = []
    started = perf_counter()
    with client.speak(text, **options) as stream:
        for chunk in stream:
            if chunk.sample_count:
                parts.append((perf_counter() - started, chunk.samples))
        assert stream.header is not None and stream.summary is not None
        rate, summary = stream.header.sample_rate, stream.summary
    samples = np.concatenate([part for _, part in parts])
    sound = onset(samples, rate, AUDIBLE_DBFS)
    plays, position, late, heard = parts[0][0], 0, False, float("inf")
    for arrived, part in parts:
        late = late or arrived > plays
        plays = max(plays, arrived)
        if position <= sound < position + len(part):
            heard = plays + (sound - position) / rate
        plays, position = plays + len(part) / rate, position + len(part)
    return Spoken(text=text, samples=samples, rate=rate, first=parts[0][0], heard=heard, late=late, summary=summary)


def levels(samples: np.ndarray, rate: int) -> np.ndarray:
    """The level of each window in dBFS."""
    window = int(WINDOW_SECONDS * rate)
    whole = samples[: len(samples) // window * window].reshape(-1, window).astype(np.float64)
    return 10 * np.log10(np.maximum(np.square(whole).mean(axis=1), 1e-20))


def onset(samples: np.ndarray, rate: int, dbfs: float) -> int:
    """The first sample of the first window above a level; the length if there is none."""
    above = levels(samples, rate) > dbfs
    return int(above.argmax()) * int(WINDOW_SECONDS * rate) if above.any() else len(samples)
