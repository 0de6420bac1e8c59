"""Audio of any kind as a speech recognizer wants it."""

from __future__ import annotations

import numpy as np

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.audio.uploads import decode

RATE = 16000  # of the recognizer
SENTENCE = "They left the party before midnight."


def samples(audio: bytes) -> np.ndarray:
    """Any audio file as int16 at 16 kHz."""
    waveform = decode(audio, target_rate=RATE, max_seconds=60, max_bytes=1 << 24).waveform
    return np.rint(np.clip(waveform, -1, 1) * 32767).astype(np.int16)


def resampled(pcm: bytes, rate: int) -> np.ndarray:
    """16-bit samples without a header as int16 at 16 kHz."""
    return samples(wav_bytes(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768, rate))
