"""A client of HTTP/2 frames, for connections that no gRPC client makes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK, PADDED = 1, 4, 1, 8
CANCEL = struct.pack(">I", 8)
GENERATE = "/voxcpm_grpc.v1.VoxCPMService/Generate"


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0, length: int | None = None) -> bytes:
    """A frame whose header declares `length` bytes, those of the payload by default."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(fields: Iterable[tuple[str, str]]) -> bytes:
    """A header block of literals without an index (HPACK)."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(text: str) -> bytes:
    size = len(text)
    if size < 127:
        return bytes([size]) + text.encode()
    size, length = size - 127, bytearray([127])
    while size >= 128:
        length.append(size % 128 + 128)
        size //= 128
    return bytes([*length, size]) + text.encode()


def call_headers(path: str = GENERATE, *more: tuple[str, str]) -> bytes:
    """The header block of a gRPC call."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "voxcpm.test"}
    return headers([*fields.items(), ("te", "trailers"), ("content-type", "application/grpc"), *more])


def call(path: str = GENERATE, *more: tuple[str, str], stream: int = 1) -> bytes:
    """The frame that opens a gRPC call, with more headers."""
    return frame(HEADERS, call_headers(path, *more), flags=END_HEADERS, stream=stream)


def grpc_message(data: bytes, *, length: int | None = None, compressed: int = 0) -> bytes:
    """The bytes of a message, whose prefix declares `length` bytes."""
    return bytes([compressed]) + struct.pack(">I", len(data) if length is None else length) + data


def exchange(connection: socket.socket, data: bytes, *, half_close: bool = False, seconds: float = 2.0) -> bytes:
    """Send bytes, and return what arrives until the server ends the connection or nothing comes for `seconds`."""
    received = b""
    with connection:
        connection.settimeout(seconds)
        try:
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(1 << 16):
                received += more
        except OSError:  # the server ended the connection while bytes were on their way, or is silent
            pass
    return received
