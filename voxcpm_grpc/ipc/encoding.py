"""The encoding of messages between processes: msgpack, never pickled."""

from __future__ import annotations

import msgspec
import numpy as np

from voxcpm_grpc.ipc.messages import Command, Report


def _pack(value: object) -> object:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype.str, value.shape, np.ascontiguousarray(value).data
    raise NotImplementedError(f"a message cannot carry a value of type {type(value).__name__}")


def _unpack(kind: type, value: object) -> object:
    dtype, shape, data = value  # type: ignore[misc]
    return np.frombuffer(bytearray(data), dtype).reshape(shape)  # a copy, because PyTorch needs writable memory


class _Envelope(msgspec.Struct):
    """The fields of a command that hold the ids of its request."""

    id: str = ""
    log_id: str = ""
    request: _Envelope | None = None
    command: _Envelope | None = None  # of a Try


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack)
_commands = msgspec.msgpack.Decoder(Command, dec_hook=_unpack)
_envelopes = msgspec.msgpack.Decoder(_Envelope)
_reports = msgspec.msgpack.Decoder(list[Report], dec_hook=_unpack)


def encode_command(command: Command) -> bytes:
    """Encode a command. Raises NotImplementedError if it holds an object that is not a plain value or array."""
    return _encoder.encode(command)


def decode_command(data: bytes | memoryview) -> Command:
    """Decode a command. Raises msgspec.DecodeError or ValueError if the data is not one."""
    return _commands.decode(data)


def command_id(data: bytes | memoryview) -> str:
    """The id of the request or codec job of a command, even if the rest does not decode; empty if there is none."""
    return _envelope(data).id


def command_log_id(data: bytes | memoryview) -> str:
    """The request id of the RPC of a command, as `command_id` finds its id."""
    return _envelope(data).log_id


def _envelope(data: bytes | memoryview) -> _Envelope:
    try:
        envelope = _envelopes.decode(data)
    except msgspec.DecodeError:
        return _Envelope()
    envelope = envelope.command or envelope
    return envelope.request or envelope


def encode_reports(reports: list[Report]) -> bytes:
    """Encode all reports of one step into one message."""
    return _encoder.encode(reports)


def decode_reports(data: bytes | memoryview) -> list[Report]:
    return _reports.decode(data)
