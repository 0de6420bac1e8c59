"""Recordings as the server reads them: the bytes of a file, whatever the caller has."""

from __future__ import annotations

import io
import os
from numbers import Real
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from voxcpm_client.errors import InvalidArgument
from voxcpm_client.values.results import Speech
from voxcpm_grpc.audio import Encoding
from voxcpm_grpc.audio.wav import header

Recording = str | os.PathLike[str] | bytes | IO[bytes] | tuple[npt.NDArray[Any], int] | Speech
"""The path of an audio file in any common format, the bytes of such a file, a file that is open for binary reading, or
samples with their rate.

Samples are a tuple `(array, rate)`, as `soundfile.read` and `librosa.load` return it, or a Speech. The array has floats
in -1 to 1 or int16, and the rate is in Hz. Its shape is [n] for mono, [n, channels] or [channels, n]: the shorter side
counts the channels, which are mixed to mono."""

MAX_CHANNELS = 32
MAX_RATE = 192_000  # the server names the rates that it takes; this catches swapped arguments


def read(recording: Recording) -> bytes:
    """The bytes of a recording: those of its file, or a WAV file of its samples.

    Blocks on the file system. Raises OSError if a file cannot be read, TypeError for anything but a Recording, and
    InvalidArgument for samples that cannot be sent.
    """
    given = cast(object, recording)
    if isinstance(given, bytes | bytearray):
        data = bytes(given)
    elif isinstance(given, str | os.PathLike):
        data = Path(cast("str | os.PathLike[str]", given)).read_bytes()
    elif isinstance(given, Speech):
        data = wav_of(given.samples, given.sample_rate)
    elif isinstance(given, tuple):
        data = _samples(cast("tuple[object, ...]", given))
    elif hasattr(given, "read"):
        data = _read_file(cast(IO[bytes], given))
    elif hasattr(given, "__array__"):
        raise TypeError("the recording is an array without a sample rate; give (array, rate)")
    else:
        raise TypeError(
            f"the recording is {type(given).__name__}; it must be a path, bytes, an open binary file or (array, rate)"
        )
    if not data:
        raise InvalidArgument("the recording has 0 bytes", field="audio")
    return data


def has_samples(recording: object) -> bool:
    """True for a recording whose format the client sets: an array with its rate, or a Speech."""
    return isinstance(recording, tuple | Speech)


def wav_of(samples: npt.NDArray[Any], rate: int) -> bytes:
    """Mono samples [n], float32 or int16, as a WAV file of the same type."""
    encoding = Encoding.PCM_F32LE if samples.dtype.kind == "f" else Encoding.PCM_S16LE
    body = samples.astype(samples.dtype.newbyteorder("<")).tobytes()
    return header(rate, encoding, len(body)) + body


def _read_file(file: IO[bytes]) -> bytes:
    data = cast(object, file.read())
    if not isinstance(data, bytes):
        raise TypeError("the recording is a text file; open it with mode 'rb'")
    if not data and isinstance(file, io.IOBase) and file.seekable() and file.tell():
        raise InvalidArgument("the file of the recording is at its end; rewind it with seek(0)", field="audio")
    return data


def _samples(given: tuple[object, ...]) -> bytes:
    if len(given) != 2:
        raise TypeError(f"a recording of samples is (array, rate); this tuple has {len(given)} items")
    array, rate = given
    if isinstance(array, int) and hasattr(rate, "__array__"):
        raise TypeError("a recording of samples is (array, rate); this tuple is (rate, array)")
    if not hasattr(array, "__array__"):
        raise TypeError(f"a recording of samples is (array, rate); the array is {type(array).__name__}")
    hertz = float(rate) if isinstance(rate, Real) and rate is not True else 0.5
    if hertz % 1:
        raise TypeError(f"the sample rate is {rate!r}; it must be a whole number of Hz")
    if not 0 < hertz <= MAX_RATE:
        raise InvalidArgument(f"the sample rate is {rate}; it must be 1 to {MAX_RATE} Hz", field="audio")
    return wav_of(_mono(np.asarray(array)), int(hertz))


def _mono(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Samples [n] of an array [n], [n, channels] or [channels, n]: int16, or float32."""
    if array.dtype != np.int16 and array.dtype.kind != "f":
        raise TypeError(f"the samples are {array.dtype}; they must be float in -1 to 1, or int16")
    if array.ndim not in (1, 2) or not array.size:
        raise InvalidArgument(
            f"the samples have shape {array.shape}; it must be [n], [n, channels] or [channels, n]", field="audio"
        )
    if array.ndim == 1:
        return array if array.dtype == np.int16 else array.astype(np.float32)
    channels, length = sorted(array.shape)
    if channels > MAX_CHANNELS or channels == length:
        raise InvalidArgument(
            f"the samples have shape {array.shape}, and its shorter side must count the channels, 1 to {MAX_CHANNELS}",
            field="audio",
        )
    across = 1 if array.shape[1] == channels else 0
    if channels == 1:
        return _mono(array.reshape(-1))
    scale = 32768.0 if array.dtype == np.int16 else 1.0
    return (array.mean(across, dtype=np.float64) / scale).astype(np.float32)
