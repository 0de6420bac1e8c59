"""The silence at the start of a signal: measured, and left out."""

from __future__ import annotations

import numpy as np

SILENT_DBFS = -60.0
"""Level below which speech has not begun: a model's silence has about -75, and soft consonants more than -60."""
AUDIBLE_DBFS = -45.0
"""Level from which on a listener hears speech."""
WINDOW_SECONDS = 0.005
"""Part of the signal whose level is measured."""
KEPT_SECONDS = 0.01
"""Silence that stays before the first sound, whose onset may be soft."""


class LeadingSilence:
    """Leaves out the silence at the start of one signal, which arrives in chunks of any size.

    The level is the root mean square of each window. Silence is left out once the signal is louder than SILENT_DBFS. If
    it is not within `max_seconds`, or ends before, all of it stays. Samples after the silence are those of the signal.

    rate: sample rate in Hz
    gain: factor of the signal's volume, which the levels take into account

    `trimmed` is the number of samples that were left out. `audible` is None until a sample is audible; then it is the
    index of its window in the samples that this push returned.
    """

    def __init__(self, rate: int, max_seconds: float, gain: float = 1.0) -> None:
        self._window = max(1, int(WINDOW_SECONDS * rate))
        self._kept = int(KEPT_SECONDS * rate)
        self._most = int(max_seconds * rate)
        self._silent, self._audible = (gain * 10 ** (level / 20) for level in (SILENT_DBFS, AUDIBLE_DBFS))
        self._unmeasured = np.zeros(0, np.float32)  # samples of less than a window
        self._measured = 0  # samples whose level was measured
        self._holds = self._most > 0
        self._held: list[np.ndarray] = []
        self.trimmed = 0
        self.audible: int | None = None

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Add float32 samples [n], and return those that are known not to be left out."""
        if self._holds:
            self._held.append(samples)
        begin = self._measure(samples)
        if not self._holds:
            return samples
        if begin is None and self._measured < self._most:
            return samples[:0]
        if begin is not None and begin < self._most:
            self.trimmed = max(0, begin - self._kept)
        if self.audible is not None:
            self.audible -= self.trimmed
        return self.release()[self.trimmed :]

    def release(self) -> np.ndarray:
        """Return the samples that are still held. Nothing is left out after them."""
        held, self._held, self._holds = self._held, [], False
        return np.concatenate(held) if held else np.zeros(0, np.float32)

    def _measure(self, samples: np.ndarray) -> int | None:
        """Measure samples until one is audible. Returns the position of the first window that is not silent.

        Sets `audible` to an index in the samples that are held, or in `samples` if none are.
        """
        if self.audible is not None:
            return None
        returned = 0 if self._holds else self._measured + len(self._unmeasured)
        samples = np.concatenate([self._unmeasured, samples])
        whole = len(samples) - len(samples) % self._window
        self._unmeasured = samples[whole:]
        levels = np.sqrt(np.square(samples[:whole].reshape(-1, self._window)).mean(axis=1))
        begin, audible = (_first(levels > level) for level in (self._silent, self._audible))
        start, self._measured = self._measured, self._measured + whole
        if audible is not None:
            self.audible = max(0, start + audible * self._window - returned)
        return None if begin is None else start + begin * self._window


def _first(found: np.ndarray) -> int | None:
    return int(found.argmax()) if found.any() else None
