"""What the model makes, as the bytes a caller asked for, while it is being made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from voxcpm_grpc.audio import pcm, wav
from voxcpm_grpc.audio.formats import AudioFormat, Encoding
from voxcpm_grpc.audio.resample import StreamResampler
from voxcpm_grpc.errors import Internal


class Encoder(Protocol):
    """float32 [n] in -1..1 to bytes. `flush` ends the stream and returns what was held back."""

    def push(self, samples: np.ndarray) -> bytes: ...

    def flush(self) -> bytes: ...


class PcmEncoder:
    """Samples to bytes without memory, behind a header on the first bytes if there is one."""

    def __init__(self, convert: Callable[[np.ndarray], bytes], header: bytes = b"") -> None:
        self._convert = convert
        self._header = header

    def push(self, samples: np.ndarray) -> bytes:
        if not len(samples):
            return b""
        header, self._header = self._header, b""
        return header + self._convert(samples)

    def flush(self) -> bytes:
        """The header if there was no audio at all, so that an empty stream is still a file."""
        header, self._header = self._header, b""
        return header


ENCODERS: dict[Encoding, Callable[[int], Encoder]] = {  # by sample rate; a new encoding is one more line
    Encoding.PCM_S16LE: lambda rate: PcmEncoder(pcm.s16_bytes),
    Encoding.PCM_F32LE: lambda rate: PcmEncoder(pcm.f32_bytes),
    Encoding.WAV: lambda rate: PcmEncoder(pcm.s16_bytes, wav.header(rate)),
}


def encoder(format: AudioFormat) -> Encoder:
    """A fresh encoder for one stream."""
    return ENCODERS[format.encoding](format.sample_rate)


class OutputPipeline:
    """Resampling and encoding of one stream, across its segments and turns.

    Every call returns (bytes, samples), samples counted at the output rate; their running sum is the exact offset.
    Within a turn the signal is continuous; `end_turn` lets its last milliseconds out, `discard` drops them.
    """

    def __init__(self, native_rate: int, format: AudioFormat) -> None:
        self._resampler = StreamResampler(native_rate, format.sample_rate)
        self._encoder = encoder(format)

    def push(self, samples: np.ndarray) -> tuple[bytes, int]:
        """float32 [n] at the native rate. Raises Internal for samples that are not finite."""
        if not np.isfinite(samples).all():  # one of them would poison everything after it in the resampler
            raise Internal
        return self._encode(self._resampler.push(samples))

    def end_turn(self) -> tuple[bytes, int]:
        """What the resampler held back; the next turn begins a new signal in the same encoded stream."""
        return self._encode(self._resampler.flush())

    def discard(self) -> None:
        """Forget what was pushed and not yet returned: after an interrupt nothing of the old turn may follow."""
        self._resampler.reset()

    def flush(self) -> tuple[bytes, int]:
        """End the stream."""
        encoded, samples = self.end_turn()
        return encoded + self._encoder.flush(), samples

    def _encode(self, samples: np.ndarray) -> tuple[bytes, int]:
        return self._encoder.push(samples), len(samples)
