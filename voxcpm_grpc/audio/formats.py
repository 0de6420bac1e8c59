"""Formats of audio that callers send and receive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from voxcpm_grpc.errors import InvalidRequest, Reason

SAMPLE_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 88200, 96000, 176400, 192000)


class BadAudio(InvalidRequest):
    """Audio from a caller that cannot be used. The message is one sentence about the audio."""

    def __init__(self, message: str) -> None:
        super().__init__(message, field="audio", reason=Reason.UNUSABLE_RECORDING)


class Encoding(StrEnum):
    """An encoding of mono samples. WAV is 16-bit PCM after a header with open lengths."""

    PCM_S16LE = "pcm_s16le"
    PCM_F32LE = "pcm_f32le"
    WAV = "wav"
    MULAW = "mulaw"
    ALAW = "alaw"
    MP3 = "mp3"
    OGG_OPUS = "ogg_opus"
    FLAC = "flac"


RATES: Mapping[Encoding, tuple[int, ...]] = dict.fromkeys(Encoding, SAMPLE_RATES) | {
    Encoding.MULAW: (8000, 16000),
    Encoding.ALAW: (8000, 16000),
    Encoding.MP3: (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000),
    Encoding.OGG_OPUS: (8000, 12000, 16000, 24000, 48000),
}
"""The sample rates of each encoding in Hz, in ascending order."""
TELEPHONE_RATE = 8000
BITRATES: Mapping[Encoding, tuple[int, int]] = {  # bits per second, at least and at most
    Encoding.MP3: (8_000, 320_000),
    Encoding.OGG_OPUS: (6_000, 256_000),
}
COMPRESSION_LEVELS: Mapping[Encoding, int] = {Encoding.MP3: 7, Encoding.OGG_OPUS: 10, Encoding.FLAC: 12}
"""The largest compression level of each encoding that has one; the smallest is 0."""


def usual_rate(encoding: Encoding, wanted: int) -> int:
    """The rate of an encoding for a signal of `wanted` Hz: the same, else the next higher one, else the highest.

    The rate of G.711 is that of telephones.
    """
    if encoding in (Encoding.MULAW, Encoding.ALAW):
        return TELEPHONE_RATE
    return next((rate for rate in RATES[encoding] if rate >= wanted), RATES[encoding][-1])


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """An encoding at a rate in Hz.

    bitrate: bits per second of MP3 and Opus; None for the encoder's choice
    compression_level: from 0, the fastest; None for the encoder's choice

    Raises InvalidRequest for an unknown encoding, and for values that the encoding does not have.
    """

    encoding: Encoding
    sample_rate: int
    bitrate: int | None = None
    compression_level: int | None = None

    def __post_init__(self) -> None:
        if self.encoding not in RATES:
            known = ", ".join(Encoding)
            raise InvalidRequest(f"encoding is {self.encoding}; it must be one of {known}", field="encoding")
        if self.sample_rate not in RATES[self.encoding]:
            known = ", ".join(map(str, RATES[self.encoding]))
            raise InvalidRequest(
                f"sample_rate is {self.sample_rate}; for {self.encoding} it must be one of {known}",
                field="sample_rate",
            )
        self._check_choice("bitrate", self.bitrate, BITRATES.get(self.encoding))
        highest = COMPRESSION_LEVELS.get(self.encoding)
        self._check_choice("compression_level", self.compression_level, None if highest is None else (0, highest))

    def _check_choice(self, name: str, value: int | None, bounds: tuple[int, int] | None) -> None:
        if value is None:
            return
        if bounds is None:
            raise InvalidRequest(f"{name} is {value}; {self.encoding} has none, remove it", field=name)
        if not bounds[0] <= value <= bounds[1]:
            raise InvalidRequest(
                f"{name} is {value}; for {self.encoding} it must be {bounds[0]} to {bounds[1]}", field=name
            )
