"""WAV files (RIFF WAVE) without a library: reading of any PCM or float file, and writing of mono files."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from voxcpm_grpc.audio import pcm
from voxcpm_grpc.audio.formats import BadAudio, Encoding

# Audio that is still written has this length, as sox writes it to a pipe. sox and ffmpeg read such audio to its end
# without a warning about the header. sox stops at once at a length of 0, and both warn about 0xFFFFFFFF.
UNKNOWN_LENGTH = 0x7FFFF000
TOO_LONG = 0xFFFFFFFF  # 32 bits cannot hold a longer length; readers go on to the end of the file
MAX_LENGTH = 0x7FFF0000  # programs that do not know the length write different numbers from here on
PCM, FLOAT, A_LAW, MU_LAW, EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
SUBFORMAT_TAIL = bytes.fromhex("000000001000800000aa00389b71")  # a GUID that stands for a plain format tag ends so
HEADER_BYTES = 44
FORMATS: Mapping[Encoding, tuple[int, int]] = {  # encodings that are not 16-bit PCM have this tag and bytes of a sample
    Encoding.PCM_F32LE: (FLOAT, 4),
    Encoding.MULAW: (MU_LAW, 1),
    Encoding.ALAW: (A_LAW, 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """A parsed file.

    data: whole frames of `channels` samples of `width` bytes
    declared: bytes that the file declares for `data`; 0 if its writer left the length open
    """

    sample_rate: int
    channels: int
    width: int
    floating: bool
    data: memoryview
    declared: int = 0


def is_wav(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def parse(data: bytes) -> Wave | None:
    """Parse a WAV file. Returns None if its codec is neither integer nor float PCM.

    A payload that is shorter than declared is used up to its end. An open length (UNKNOWN_LENGTH, 0xFFFFFFFF, or 0 by
    a writer that did not close the file) stands for the rest of the file. Raises BadAudio for a file without format or
    payload.
    """
    fmt = b""
    at = 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        at += 8
        if name == b"fmt ":
            fmt = data[at : at + size]
        elif name == b"data":
            return _wave(fmt, _payload(data, at, size), size if size < MAX_LENGTH else 0)
        at += size + size % 2
    raise BadAudio("the WAV file has no data chunk: it ends before its audio")


def payload_bytes(data: bytes) -> tuple[int, int]:
    """The bytes that a WAV file of any codec has of its payload, and those that it declares; 0 for an open length."""
    at = 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        at += 8
        if name == b"data":
            return min(size, len(data) - at), size if size < MAX_LENGTH else 0
        at += size + size % 2
    return 0, 0


def _payload(data: bytes, at: int, size: int) -> memoryview:
    (riff_size,) = struct.unpack_from("<I", data, 4)
    # The payload is empty only if the length of the file agrees; otherwise a writer did not close the file.
    never_closed = size == 0 and riff_size != len(data) - 8
    return memoryview(data)[at:] if never_closed else memoryview(data)[at : at + size]


def _wave(fmt: bytes, payload: memoryview, declared: int) -> Wave | None:
    if len(fmt) < 16:
        raise BadAudio("the WAV file has no usable fmt chunk before its data")
    tag, channels, sample_rate, _, frame_bytes, _ = struct.unpack_from("<HHIIHH", fmt)
    if tag == EXTENSIBLE and fmt[26:40] == SUBFORMAT_TAIL:
        (tag,) = struct.unpack_from("<H", fmt, 24)
    if tag not in (PCM, FLOAT):
        return None
    width, rest = divmod(frame_bytes, channels) if channels else (0, 0)
    if rest or width not in (pcm.FLOAT_WIDTHS if tag == FLOAT else pcm.INT_WIDTHS):
        raise BadAudio(f"the WAV file declares {channels} channels in frames of {frame_bytes} bytes, which do not fit")
    whole = payload[: len(payload) // frame_bytes * frame_bytes]
    return Wave(
        sample_rate=sample_rate,
        channels=channels,
        width=width,
        floating=tag == FLOAT,
        data=whole,
        declared=declared,
    )


def header(sample_rate: int, encoding: Encoding = Encoding.PCM_S16LE, data_bytes: int | None = None) -> bytes:
    """The 44 bytes before mono samples of an encoding. Lengths are open if `data_bytes` is None or more than 4 GB."""
    tag, width = FORMATS.get(encoding, (PCM, 2))
    data_size = UNKNOWN_LENGTH if data_bytes is None else min(data_bytes, TOO_LONG)
    riff_size = min(data_size + HEADER_BYTES - 8, TOO_LONG)
    fmt = struct.pack("<HHIIHH", tag, 1, sample_rate, sample_rate * width, width, width * 8)
    return (
        struct.pack("<4sI8sI", b"RIFF", riff_size, b"WAVEfmt ", len(fmt))
        + fmt
        + struct.pack("<4sI", b"data", data_size)
    )


def wav_bytes(samples: np.ndarray, sample_rate: int) -> bytes:
    """A complete mono 16-bit WAV file. samples: float [n]."""
    body = pcm.s16_bytes(samples)
    return header(sample_rate, data_bytes=len(body)) + body


class WavWriter:
    """Writes mono PCM bytes as a WAV file that is valid at any time.

    The lengths in the header are open until `close`, which sets them if `file` can seek. `close` does not close `file`,
    which belongs to the caller.
    """

    def __init__(self, file: BinaryIO, sample_rate: int, encoding: Encoding = Encoding.PCM_S16LE) -> None:
        self._file = file
        self._rate = sample_rate
        self._encoding = encoding
        self._start = file.tell() if file.seekable() else None
        self._bytes = 0
        file.write(header(sample_rate, encoding))

    def write(self, pcm_bytes: bytes) -> None:
        self._file.write(pcm_bytes)
        self._bytes += len(pcm_bytes)

    def close(self) -> None:
        if self._start is not None:
            self._file.seek(self._start)
            self._file.write(header(self._rate, self._encoding, self._bytes))
            self._file.seek(self._start + HEADER_BYTES + self._bytes)
        self._file.flush()

    def __enter__(self) -> WavWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
