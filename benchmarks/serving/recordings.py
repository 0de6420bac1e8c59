"""Recordings to clone, all different."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SECONDS, RATE = 5.0, 16000
LOWEST, HIGHEST = 100, 300  # pitch of the voices in Hz


def recording(index: int) -> tuple[NDArray[np.float32], int]:
    """Mono samples of syllables of a hum with noise, each `index` with its own, and their rate."""
    time = np.arange(int(SECONDS * RATE)) / RATE
    draws = np.random.default_rng(index)
    pitch = LOWEST + 10 * index % (HIGHEST - LOWEST) + 5 * np.sin(2 * np.pi * 3 * time)
    hum = np.sin(2 * np.pi * np.cumsum(pitch) / RATE) + 0.1 * draws.standard_normal(len(time))
    syllables = np.sin(2 * np.pi * 2 * time) ** 2
    return (0.3 * syllables * hum).astype(np.float32), RATE
