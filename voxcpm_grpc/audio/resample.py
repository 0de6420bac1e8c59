"""Change of sample rate by soxr at its HQ quality, at once for what comes in and streaming for what goes out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from voxcpm_grpc.errors import FailedPrecondition

QUALITY = "HQ"


def resample(samples: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """float32 [n] at another rate: ceil(n * target / source) samples, as `librosa.resample` with soxr_hq gives.

    Raises FailedPrecondition when the rates differ and soxr is not installed.
    """
    if source_rate == target_rate:
        return samples
    resampled = _soxr().resample(samples, source_rate, target_rate, quality=QUALITY)
    length = math.ceil(len(samples) * (float(target_rate) / source_rate))  # in librosa's order of operations
    return np.pad(resampled[:length], (0, max(0, length - len(resampled))))


class StreamResampler:
    """The same conversion of an endless signal, chunk by chunk.

    All chunks together are the signal resampled at once, whatever the cuts; their number is the integer nearest to
    n * target / source. soxr works in blocks: from 48 kHz, up to 40 ms of what was pushed are still to come (80 ms
    at 11.025 and 12 kHz, 160 ms at 8 kHz) until `flush`. Nothing is shifted in time. Equal rates pass through.
    """

    def __init__(self, source_rate: int, target_rate: int) -> None:
        self._rates = source_rate, target_rate
        self._stream: Any = None
        self.reset()

    def push(self, samples: np.ndarray) -> np.ndarray:
        """float32 [n] in; what is ready, perhaps nothing, out."""
        if self._stream is None or not len(samples):
            return samples
        self._fresh = False
        return self._stream.resample_chunk(np.ascontiguousarray(samples, np.float32))

    def flush(self) -> np.ndarray:
        """What was held back. The next `push` begins a new signal."""
        rest = np.zeros(0, np.float32)
        if self._stream is not None and not self._fresh:
            rest = self._stream.resample_chunk(rest, last=True)
            self.reset()
        return rest

    def reset(self) -> None:
        """Forget what was held back."""
        source, target = self._rates
        self._fresh = True
        if source != target:
            self._stream = _soxr().ResampleStream(source, target, 1, dtype="float32", quality=QUALITY)


def _soxr() -> Any:
    try:
        import soxr
    except ImportError:
        raise FailedPrecondition(
            "this server cannot change sample rates: it lacks soxr, which `pip install 'voxcpm-grpc[server]'` installs"
        ) from None
    return soxr
