"""Streaming encoding of the model's audio in the format that a caller requested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from voxcpm_grpc.audio import pcm, wav
from voxcpm_grpc.audio.formats import AudioFormat, Encoding
from voxcpm_grpc.audio.resample import StreamResampler
from voxcpm_grpc.errors import Internal


class Encoder(Protocol):
    """Encodes the samples of one stream."""

    def push(self, samples: np.ndarray) -> bytes:
        """The bytes of float32 samples [n] in -1..1."""
        ...

    def flush(self) -> bytes:
        """End the stream, and return its last bytes."""
        ...


class PcmEncoder:
    """Encodes each sample on its own. The first bytes follow the header, if there is one."""

    def __init__(self, convert: Callable[[np.ndarray], bytes], header: bytes = b"") -> None:
        self._convert = convert
        self._header = header

    def push(self, samples: np.ndarray) -> bytes:
        if not len(samples):
            return b""
        header, self._header = self._header, b""
        return header + self._convert(samples)

    def flush(self) -> bytes:
        """The header if there was no audio, so that an empty stream is a valid file."""
        header, self._header = self._header, b""
        return header


ENCODERS: dict[Encoding, Callable[[int], Encoder]] = {  # each takes a sample rate; a new encoding is one more line
    Encoding.PCM_S16LE: lambda rate: PcmEncoder(pcm.s16_bytes),
    Encoding.PCM_F32LE: lambda rate: PcmEncoder(pcm.f32_bytes),
    Encoding.WAV: lambda rate: PcmEncoder(pcm.s16_bytes, wav.header(rate)),
}


def encoder(format: AudioFormat) -> Encoder:
    """A new encoder for one stream."""
    return ENCODERS[format.encoding](format.sample_rate)


class OutputPipeline:
    """Resamples and encodes one stream with all its segments and turns.

    Every call returns the bytes and the number of their samples at the output rate; the sum of these numbers is the
    exact offset. Within a turn the signal is continuous. The resampler keeps its last milliseconds until `end_turn`.
    """

    def __init__(self, native_rate: int, format: AudioFormat) -> None:
        self._resampler = StreamResampler(native_rate, format.sample_rate)
        self._encoder = encoder(format)

    def push(self, samples: np.ndarray) -> tuple[bytes, int]:
        """Encode float32 samples [n] at the native rate. Raises Internal for samples that are not finite."""
        if not np.isfinite(samples).all():  # the resampler would spread them over all samples that follow
            raise Internal
        return self._encode(self._resampler.push(samples))

    def end_turn(self) -> tuple[bytes, int]:
        """Encode the samples that the resampler still holds. The next turn is a new signal in the same stream."""
        return self._encode(self._resampler.flush())

    def discard(self) -> None:
        """Drop the samples that the resampler still holds, because no audio of a turn may follow its interrupt."""
        self._resampler.reset()

    def flush(self) -> tuple[bytes, int]:
        """End the stream, and return its last bytes."""
        encoded, samples = self.end_turn()
        return encoded + self._encoder.flush(), samples

    def _encode(self, samples: np.ndarray) -> tuple[bytes, int]:
        return self._encoder.push(samples), len(samples)
