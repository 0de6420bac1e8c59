"""Formats of audio that callers send and receive."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from voxcpm_grpc.errors import InvalidRequest

SAMPLE_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 88200, 96000, 176400, 192000)


class BadAudio(InvalidRequest):
    """Audio from a caller that cannot be used. The message is one sentence about the audio."""

    def __init__(self, message: str) -> None:
        super().__init__(message, field="audio")


class Encoding(StrEnum):
    """An encoding of mono samples. WAV is 16-bit PCM after a header with open lengths."""

    PCM_S16LE = "pcm_s16le"
    PCM_F32LE = "pcm_f32le"
    WAV = "wav"


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """An encoding at a rate in Hz. Raises InvalidRequest for an unknown encoding and for a rate not in SAMPLE_RATES."""

    encoding: Encoding
    sample_rate: int

    def __post_init__(self) -> None:
        if self.encoding not in tuple(Encoding):
            known = ", ".join(Encoding)
            raise InvalidRequest(f"encoding is {self.encoding}; it must be one of {known}", field="encoding")
        if self.sample_rate not in SAMPLE_RATES:
            known = ", ".join(map(str, SAMPLE_RATES))
            raise InvalidRequest(f"sample_rate is {self.sample_rate}; it must be one of {known}", field="sample_rate")
