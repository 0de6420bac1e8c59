"""Mixes the channels of a recording to one, and finds out where they cancel each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

PIECE = 4800  # samples; a tenth of a second at 48 kHz
MAX_LOSS_DB = 10.0  # dB of the mean of the channels; one of two channels has 6 dB more than the mean with a silent one
MAX_LOST = 0.1  # this share of the sound may lose so much
FLOOR = 1e-10
MAX_SHOWN_DB = 99.0


@dataclass(frozen=True, slots=True)
class Lost:
    """Sound that the mean of the channels loses.

    channel: the loudest one, from 0
    channels: their number
    decibels: by which single channels are louder than the mean, where it loses too much
    cancels: True if the channels cancel each other; otherwise most of them are silent
    """

    channel: int
    channels: int
    decibels: float
    cancels: bool


class Mixdown:
    """The mean of the channels of blocks, or one channel of them.

    only: number of the only channel to take, from 0; None for the mean
    """

    def __init__(self, only: int | None = None) -> None:
        self._only = only
        self._blocks: list[np.ndarray] = []
        self._energies: list[np.ndarray] = []  # each piece has a float64 [channels + 1], the mean of the channels last

    def add(self, samples: np.ndarray) -> None:
        """Add float32 samples [channels, n]."""
        with np.errstate(all="ignore"):  # infinities are reported later
            if len(samples) == 1:
                mixed = samples[0]
            elif self._only is not None:
                mixed = samples[min(self._only, len(samples) - 1)]
            else:
                mixed = samples.mean(axis=0, dtype=np.float32)
                self._energies += _energies(np.vstack([samples, mixed[None]]))
        self._blocks.append(mixed)

    @property
    def samples(self) -> np.ndarray:
        """All blocks, float32 [n]."""
        return np.concatenate([np.zeros(0, np.float32), *self._blocks]) if len(self._blocks) != 1 else self._blocks[0]

    @property
    def lost(self) -> Lost | None:
        """The channel to take instead of the mean, if too much of the sound is lost in that; else None."""
        if not self._energies or len({len(one) for one in self._energies}) > 1:
            return None
        energies = np.stack(self._energies)
        if not np.isfinite(energies).all():
            return None
        channels, mean = energies[:, :-1], energies[:, -1]
        loudest = channels.max(axis=1)
        factor = 10 ** (-MAX_LOSS_DB / 10)
        lost = mean < factor * loudest
        if loudest[lost].sum() <= MAX_LOST * loudest.sum():
            return None
        count, left = channels.shape[1], mean[lost].sum()
        decibels = 10 * np.log10((loudest[lost].sum() + FLOOR) / (left + FLOOR))
        cancels = left < factor * channels[lost].sum() / count**2  # the energies of independent channels add up
        channel = int(channels.sum(axis=0).argmax())
        return Lost(channel, count, min(float(decibels), MAX_SHOWN_DB), bool(cancels))


def _energies(rows: np.ndarray) -> Iterator[np.ndarray]:
    """The energy of each row in each piece, without its constant part."""
    for start in range(0, rows.shape[1], PIECE):
        piece = rows[:, start : start + PIECE]
        yield piece.var(axis=1, dtype=np.float64) * piece.shape[1]
