"""The encoding of messages between processes: msgpack, never pickled."""

from __future__ import annotations

import msgspec
import numpy as np

from voxcpm_grpc.ipc.messages import Command, Report

ELEMENTS = 1
"""The code of the msgpack extension that holds the elements of an array: it is decoded without a copy of its own."""


def _pack(value: object) -> object:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype.str, value.shape, msgspec.msgpack.Ext(ELEMENTS, np.ascontiguousarray(value).data)
    raise NotImplementedError(f"a message cannot carry a value of type {type(value).__name__}")


def _unpack(kind: type, value: object) -> object:
    dtype, shape, data = value  # type: ignore[misc]
    # PyTorch needs writable memory, and the message has the arrays of many requests, so this is a copy.
    return np.frombuffer(data, dtype).reshape(shape).copy()


class _Envelope(msgspec.Struct):
    """The fields of a command that hold the ids of its request."""

    id: str = ""
    log_id: str = ""
    request: _Envelope | None = None
    command: _Envelope | None = None  # a Try has a command


encode = msgspec.msgpack.Encoder(enc_hook=_pack).encode
"""Encode a command, or all reports of one step into one message.

Raises NotImplementedError if it holds an object that is not a plain value or array.
"""
decode_command = msgspec.msgpack.Decoder(Command, dec_hook=_unpack, ext_hook=lambda code, data: data).decode
"""Decode a command. Raises msgspec.DecodeError or ValueError if the data is not one."""
decode_reports = msgspec.msgpack.Decoder(list[Report], dec_hook=_unpack, ext_hook=lambda code, data: data).decode

_envelopes = msgspec.msgpack.Decoder(_Envelope)


def command_ids(data: bytes | memoryview) -> tuple[str, str]:
    """The id of the request or codec job of a command, and the request id of its RPC; empty if there are none.

    They are found even if the rest of the command does not decode.
    """
    try:
        envelope = _envelopes.decode(data)
    except msgspec.DecodeError:
        return "", ""
    envelope = envelope.command or envelope
    envelope = envelope.request or envelope
    return envelope.id, envelope.log_id
