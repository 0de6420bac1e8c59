"""What crosses the boundary between a front and an engine process: typed, msgpack, never pickled."""

from __future__ import annotations

import msgspec
import numpy as np

from voxcpm_grpc.errors import VoxCPMError, code_of, from_code
from voxcpm_grpc.request import Admitted, AudioChunk, Finished, ModelInfo, Request, Stats


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


# ---- to the engine


class Submit(_Message):
    request: Request


class Cancel(_Message):
    """Stop a request or a codec job. Unknown ids are ignored: it may have ended meanwhile."""

    id: str


class Encode(_Message):
    """Latents of a waveform float32 [samples] at the model's input rate."""

    id: str
    waveform: np.ndarray
    pad_left: bool


class Decode(_Message):
    """Audio of latents float32 [patches, P, D]."""

    id: str
    latents: np.ndarray


class GetStats(_Message):
    id: str


class Stop(_Message):
    """End the process once the current step is done."""


Command = Submit | Cancel | Encode | Decode | GetStats | Stop


# ---- from the engine


class Ready(_Message):
    """The model is loaded; the first message of an engine that started."""

    info: ModelInfo


class StartFailed(_Message):
    """The engine could not start; the message is for the operator."""

    message: str


class Began(_Message):
    id: str
    event: Admitted


class Spoke(_Message):
    id: str
    event: AudioChunk


class Ended(_Message):
    id: str
    event: Finished


class Encoded(_Message):
    """One piece of the latents asked for; `last` ends the job."""

    id: str
    latents: np.ndarray
    last: bool


class Decoded(_Message):
    """One piece of the audio asked for; `last` ends the job."""

    id: str
    samples: np.ndarray
    last: bool


class Failed(_Message):
    """A request or job ended with an error."""

    id: str
    code: str
    message: str
    field: str
    retry_after: float | None

    @classmethod
    def of(cls, id: str, error: VoxCPMError) -> Failed:
        return cls(id, code_of(error), error.message, error.field, error.retry_after)

    def error(self) -> VoxCPMError:
        return from_code(self.code, self.message, field=self.field, retry_after=self.retry_after)


class Statistics(_Message):
    id: str
    stats: Stats


Report = Ready | StartFailed | Began | Spoke | Ended | Encoded | Decoded | Failed | Statistics


# ---- wire


def _pack(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, np.ascontiguousarray(value).data
    raise NotImplementedError(f"{type(value).__name__} does not cross processes")


def _unpack(kind: type, value: object) -> object:
    dtype, shape, data = value  # type: ignore[misc]
    return np.frombuffer(data, dtype).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack)
_commands = msgspec.msgpack.Decoder(Command, dec_hook=_unpack)
_reports = msgspec.msgpack.Decoder(list[Report], dec_hook=_unpack)


def encode_command(command: Command) -> bytes:
    return _encoder.encode(command)


def decode_command(data: bytes) -> Command:
    return _commands.decode(data)


def encode_reports(reports: list[Report]) -> bytes:
    """One message for all that a step brought."""
    return _encoder.encode(reports)


def decode_reports(data: bytes) -> list[Report]:
    return _reports.decode(data)
