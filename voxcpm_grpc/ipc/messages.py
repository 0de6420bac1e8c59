"""What crosses the boundaries between fronts, engines and their host: typed, msgpack, never pickled."""

from __future__ import annotations

import msgspec
import numpy as np

from voxcpm_grpc.errors import VoxCPMError, code_of, from_code
from voxcpm_grpc.request import CodecChunk, Event, ModelInfo, Request

BEAT_SECONDS = 0.25


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


# ---- to the engine


class Submit(_Message, frozen=True):
    """Speak a request. `credit` chunks may be made before more is granted; `work` steps are a guess of its length."""

    request: Request
    credit: int
    work: float = 0.0


class Credit(_Message, frozen=True):
    """The listener of a request has read on: that many chunks more may be made."""

    id: str
    chunks: int


class Cancel(_Message, frozen=True):
    """Stop a request or a codec job. Unknown ids are ignored: it may have ended meanwhile."""

    id: str


class Encode(_Message, frozen=True):
    """Latents of a waveform float32 [samples] at the model's input rate."""

    id: str
    waveform: np.ndarray
    pad_left: bool


class Decode(_Message, frozen=True):
    """Audio of latents float32 [patches, P, D]."""

    id: str
    latents: np.ndarray


class Stop(_Message, frozen=True):
    """End the process once the current step is done; a front drains first."""


class Attach(_Message, frozen=True):
    """Serve one more front, which listens at `address`, and send it Ready."""

    front: str
    address: str


class Detach(_Message, frozen=True):
    """A front is gone: cancel what it asked for. Unknown names are ignored."""

    front: str


# ---- to a front in a process of its own, from the host of its engines


class EngineCame(_Message, frozen=True):
    """An engine is there, and will connect to `address` when the front listens there."""

    place: str
    address: str


class EngineWent(_Message, frozen=True):
    """The engine of a place is lost, and what it was doing."""

    place: str


Command = Submit | Credit | Cancel | Encode | Decode | Stop | Attach | Detach | EngineCame | EngineWent


# ---- from the engine


class Ready(_Message, frozen=True):
    """The model is loaded; the first message of an engine that started, and of a front that serves."""

    info: ModelInfo


class StartFailed(_Message, frozen=True):
    """The engine or front could not start; the message is for the operator."""

    message: str


class Beat(_Message, frozen=True):
    """The engine's process is awake. Comes every `BEAT_SECONDS`, from beside its loop.

    `busy_seconds`: how long the loop has been at its present step, 0.0 at rest. `slowest_step`: the seconds of the
    longest step when the engine was warmed up, the measure of what is too long.
    """

    busy_seconds: float
    slowest_step: float


class CallEvent(_Message, frozen=True):
    """An event of a request, or a piece of a codec job's result."""

    id: str
    body: Event | CodecChunk


class Failed(_Message, frozen=True):
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


class ExternalLoad(_Message, frozen=True):
    """What an engine does for other fronts than this one: streams, and steps that these have still to make."""

    streams: int
    steps: float


Report = Ready | StartFailed | Beat | CallEvent | Failed | ExternalLoad


# ---- wire


def _pack(value: object) -> object:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype.str, value.shape, np.ascontiguousarray(value).data
    raise NotImplementedError(f"{type(value).__name__} does not cross processes")


def _unpack(kind: type, value: object) -> object:
    dtype, shape, data = value  # type: ignore[misc]
    return np.frombuffer(bytearray(data), dtype).reshape(shape)  # a copy, for PyTorch takes writable memory only


class _Envelope(msgspec.Struct):
    """What names the request in any command."""

    id: str = ""
    request: _Envelope | None = None


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack)
_commands = msgspec.msgpack.Decoder(Command, dec_hook=_unpack)
_envelopes = msgspec.msgpack.Decoder(_Envelope)
_reports = msgspec.msgpack.Decoder(list[Report], dec_hook=_unpack)


def encode_command(command: Command) -> bytes:
    return _encoder.encode(command)


def decode_command(data: bytes | memoryview) -> Command:
    """The command of a message. Raises msgspec.DecodeError or ValueError if it is none."""
    return _commands.decode(data)


def command_id(data: bytes | memoryview) -> str:
    """The request or job that a command is about, even if the rest of it does not decode; empty if it names none."""
    try:
        envelope = _envelopes.decode(data)
    except msgspec.DecodeError:
        return ""
    return envelope.request.id if envelope.request else envelope.id


def encode_reports(reports: list[Report]) -> bytes:
    """One message for all that a step brought."""
    return _encoder.encode(reports)


def decode_reports(data: bytes | memoryview) -> list[Report]:
    return _reports.decode(data)
