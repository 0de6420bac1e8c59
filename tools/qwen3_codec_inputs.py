"""The inputs of the codec's goldens: codes and recordings, made of integers, so that they are the same everywhere."""

from __future__ import annotations

import numpy as np

RATE = 24000
QUANTIZERS, ENTRIES = 16, 512
FRAMES = 700
SECONDS = (0.1, 3.0, 12.0, 30.0)
TONE_HZ = 220


def codes(frames: int = FRAMES, seed: int = 1) -> np.ndarray:
    """Random codes int64 [frames, QUANTIZERS]."""
    raw = np.random.Philox(key=seed).random_raw(frames * QUANTIZERS)
    return (raw % ENTRIES).astype(np.int64).reshape(frames, QUANTIZERS)


def recording(seconds: float, seed: int = 5) -> np.ndarray:
    """A tone of varying loudness and noise, float32 [samples]: one more than whole frames have, from 1 s on."""
    samples = round(seconds * RATE) + (seconds >= 1)
    place = np.arange(samples, dtype=np.int64)
    tone = 4 * np.abs(place * TONE_HZ % RATE - RATE // 2) - RATE  # a triangle between -RATE and RATE
    loudness = np.abs(place % (RATE // 3) - RATE // 6)
    noise = np.random.Philox(key=seed).random_raw(samples).astype(np.int64) % 6001 - 3000
    return ((tone * loudness // RATE + noise) / 32768).astype(np.float32)
