"""Encodings of audio: their numbers in messages, the suffixes of their files, and their samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxcpm_client.errors import InvalidArgument
from voxcpm_grpc.audio import Encoding
from voxcpm_grpc.v1 import tts_pb2 as pb

ENCODINGS: Mapping[Encoding, Any] = {
    Encoding.PCM_S16LE: pb.AUDIO_ENCODING_PCM_S16LE,
    Encoding.PCM_F32LE: pb.AUDIO_ENCODING_PCM_F32LE,
    Encoding.WAV: pb.AUDIO_ENCODING_WAV,
    Encoding.MULAW: pb.AUDIO_ENCODING_MULAW,
    Encoding.ALAW: pb.AUDIO_ENCODING_ALAW,
    Encoding.MP3: pb.AUDIO_ENCODING_MP3,
    Encoding.OGG_OPUS: pb.AUDIO_ENCODING_OGG_OPUS,
    Encoding.FLAC: pb.AUDIO_ENCODING_FLAC,
}
PCM = (Encoding.PCM_S16LE, Encoding.PCM_F32LE, Encoding.WAV)
"""Encodings whose samples the client gives as arrays."""
RAW_SUFFIXES = (".pcm", ".raw")
COMPRESSED_SUFFIXES: Mapping[str, Encoding] = {
    ".mp3": Encoding.MP3,
    ".opus": Encoding.OGG_OPUS,
    ".ogg": Encoding.OGG_OPUS,
    ".flac": Encoding.FLAC,
    ".ulaw": Encoding.MULAW,
    ".alaw": Encoding.ALAW,
}
SUFFIXES = (".wav", *RAW_SUFFIXES, *COMPRESSED_SUFFIXES)
BY_NUMBER: Mapping[int, Encoding] = {number: encoding for encoding, number in ENCODINGS.items()}


def suffixes(encoding: Encoding) -> tuple[str, ...]:
    """The suffixes of files with this encoding."""
    if encoding in PCM:
        return (".wav", *RAW_SUFFIXES)
    return tuple(suffix for suffix, of in COMPRESSED_SUFFIXES.items() if of == encoding)


def alternatives(words: Sequence[str]) -> str:
    """The words as a list in English, such as "a, b or c"."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def audio_suffix(path: Path, encoding: Encoding = Encoding.PCM_S16LE) -> str:
    """The suffix of a file for audio, in lower case. Raises InvalidArgument for one of another encoding."""
    suffix = path.suffix.lower()
    if suffix and suffix not in suffixes(encoding):
        other = COMPRESSED_SUFFIXES.get(suffix)
        remedy = f"request the format {other} for {suffix}" if other else "use one of them"
        raise InvalidArgument(
            f"{path} must end in {alternatives(suffixes(encoding))} for audio in {encoding}; {remedy}", field="file"
        )
    return suffix


def samples_of(audio: bytes, encoding: Encoding, count: int) -> npt.NDArray[Any]:
    """The last `count` samples of `audio`; a WAV header may precede them."""
    dtype = np.dtype("<f4" if encoding == Encoding.PCM_F32LE else "<i2")
    return np.frombuffer(audio, dtype, count=count, offset=len(audio) - count * dtype.itemsize)
