"""Conversion of samples to bytes and back. Full scale is 2**(bits - 1) both ways, so 16 bits are converted exactly."""

from __future__ import annotations

import numpy as np

FLOAT_WIDTHS = (4, 8)
INT_WIDTHS = (1, 2, 3, 4)


def to_float(samples: np.ndarray) -> np.ndarray:
    """Samples of any integer or float type as float32, with the same shape. 8-bit integers are unsigned, as in WAV."""
    if samples.dtype.kind == "f":
        with np.errstate(over="ignore"):  # a huge float64 becomes infinite, and callers reject infinite samples
            return samples.astype(np.float32)
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128) / 128
    return samples.astype(np.float32) * np.float32(2.0 ** (1 - 8 * samples.dtype.itemsize))


def decode_pcm(raw: bytes | memoryview, *, width: int, floating: bool = False) -> np.ndarray:
    """Little-endian samples of `width` bytes as float32 [n]. raw: whole samples."""
    if width != 3:
        kind = "f" if floating else "u" if width == 1 else "i"
        return to_float(np.frombuffer(raw, f"<{kind}{width}"))
    # The 24 bits are the upper ones of 32, so that the scale of 32 bits applies.
    widened = np.zeros((len(raw) // 3, 4), np.uint8)
    widened[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
    return to_float(widened.reshape(-1).view("<i4"))


def s16(samples: np.ndarray) -> np.ndarray:
    """Float samples as 16-bit little-endian integers: times 32768, rounded half to even, clipped."""
    scaled = samples * np.float32(32768)
    np.rint(scaled, out=scaled)
    scaled.clip(-32768, 32767, out=scaled)
    return scaled.astype("<i2")


def s16_bytes(samples: np.ndarray) -> bytes:
    """The bytes of `s16`."""
    return s16(samples).tobytes()


def f32_bytes(samples: np.ndarray) -> bytes:
    """Float samples as 32-bit little-endian float PCM, not clipped."""
    return samples.astype("<f4").tobytes()
