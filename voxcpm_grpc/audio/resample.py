"""Resampling with soxr at its HQ quality: of whole recordings, and of a stream chunk by chunk."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from voxcpm_grpc.errors import FailedPrecondition, Reason

QUALITY = "HQ"


def resample(samples: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """Resample float32 samples [n] to ceil(n * target / source) samples, as `librosa.resample` does with soxr_hq.

    Raises FailedPrecondition if the rates differ and soxr is not installed.
    """
    if source_rate == target_rate:
        return samples
    resampled = _soxr().resample(samples, source_rate, target_rate, quality=QUALITY)
    # The order of these operations is that of librosa.
    length = math.ceil(len(samples) * (float(target_rate) / source_rate))
    return np.pad(resampled[:length], (0, max(0, length - len(resampled))))


class StreamResampler:
    """Resamples a signal chunk by chunk.

    All chunks together equal the signal resampled at once, for any chunk sizes; the number of samples is the integer
    nearest to n * target / source. soxr works in blocks: from 48 kHz, up to 40 ms of the pushed samples are still held
    (80 ms at 11.025 and 12 kHz, 160 ms at 8 kHz) until `flush`. The signal is not shifted in time. With equal rates,
    samples are returned unchanged.
    """

    def __init__(self, source_rate: int, target_rate: int) -> None:
        self._rates = source_rate, target_rate
        self._stream: Any = None
        self.reset()

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Add float32 samples [n], and return the resampled samples that are ready, if any."""
        if self._stream is None or not len(samples):
            return samples
        self._fresh = False
        return self._stream.resample_chunk(np.ascontiguousarray(samples, np.float32))

    def flush(self) -> np.ndarray:
        """Return the samples that are still held. The next `push` starts a new signal."""
        rest = np.zeros(0, np.float32)
        if self._stream is not None and not self._fresh:
            rest = self._stream.resample_chunk(rest, last=True)
            self.reset()
        return rest

    def reset(self) -> None:
        """Drop the samples that are still held, and start a new signal."""
        source, target = self._rates
        self._fresh = True
        if source != target:
            self._stream = _soxr().ResampleStream(source, target, 1, dtype="float32", quality=QUALITY)


def _soxr() -> Any:
    try:
        import soxr
    except ImportError:
        raise FailedPrecondition(
            "this server cannot resample audio, because soxr is missing: pip install 'voxcpm-grpc[server]'",
            reason=Reason.PACKAGE_MISSING,
            extra="server",
        ) from None
    return soxr
