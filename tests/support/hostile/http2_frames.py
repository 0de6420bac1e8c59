"""A server of HTTP/2 frames, for ends of a connection that no gRPC server makes on request."""

from __future__ import annotations

import base64
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from google.protobuf.message import Message

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PREFACE_BYTES = 24
# :status 200 of the static table, then content-type (31) without an index: application/grpc
RESPONSE_HEADERS = bytes([0x88, 0x0F, 0x10, 16]) + b"application/grpc"
NO_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL = 0, 2, 7, 8


@dataclass(frozen=True)
class FrameCall:
    """One RPC on a connection of its own."""

    connection: socket.socket
    stream: int
    listening: socket.socket  # of the server

    def send(self, kind: int, payload: bytes, *, flags: int = 0, stream: int | None = None) -> None:
        self.connection.sendall(_frame(kind, payload, self.stream if stream is None else stream, flags))

    def answer(self, *messages: Message) -> None:
        """Send the header of the response, and messages."""
        self.send(HEADERS, RESPONSE_HEADERS, flags=END_HEADERS)
        for message in messages:
            data = message.SerializeToString()
            self.send(DATA, b"\0" + struct.pack(">I", len(data)) + data)

    def end(self, *trailers: tuple[str, str | bytes], reset: int | None = None) -> None:
        """End the stream with trailers, and reset it at once, as HAProxy does if the client still writes.

        reset: code of the reset; None for none
        """
        payload = b"".join(_header(name, value) for name, value in trailers)
        frames = _frame(HEADERS, payload, self.stream, END_HEADERS | END_STREAM)
        if reset is not None:
            frames += _frame(RST_STREAM, struct.pack(">I", reset), self.stream)
        self.connection.sendall(frames)

    def reset(self, code: int) -> None:
        self.send(RST_STREAM, struct.pack(">I", code))

    def close(self) -> None:
        """End the connection. What was sent before still arrives, because the other side is read to its end."""
        self.connection.shutdown(socket.SHUT_WR)

    def stop_listening(self) -> None:
        """Let the server refuse all further connections."""
        self.listening.shutdown(socket.SHUT_RDWR)

    def go_away(self, last_stream: int, code: int = NO_ERROR, text: bytes = b"") -> None:
        self.send(GOAWAY, struct.pack(">II", last_stream, code) + text, stream=0)


@contextmanager
def frame_server(*plays: Callable[[FrameCall], None]) -> Iterator[tuple[str, list[int]]]:
    """Serve one call with each of `plays`, and all later ones with the last.

    Yields the address, and a list with an item for each call.
    """
    calls: list[int] = []

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if len(_exactly(connection, PREFACE_BYTES)) < PREFACE_BYTES:
                return
            FrameCall(connection, 0, listening).send(SETTINGS, b"")
            while head := _exactly(connection, 9):
                payload = _exactly(connection, int.from_bytes(head[:3], "big"))
                kind, flags, stream = head[3], head[4], struct.unpack(">I", head[5:])[0]
                if kind == SETTINGS and not flags & ACK:
                    FrameCall(connection, 0, listening).send(SETTINGS, b"", flags=ACK)
                elif kind == PING and not flags & ACK:
                    FrameCall(connection, 0, listening).send(PING, payload, flags=ACK)
                elif kind == HEADERS:
                    calls.append(stream)
                    plays[min(len(calls), len(plays)) - 1](FrameCall(connection, stream, listening))

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", calls
        with suppress(OSError):  # a call has done it
            listening.shutdown(socket.SHUT_RDWR)


def _frame(kind: int, payload: bytes, stream: int, flags: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _header(name: str, value: str | bytes) -> bytes:
    """A header that is not compressed, as HPACK writes it; bytes in base64, as gRPC sends them."""
    data = value.encode() if isinstance(value, str) else base64.b64encode(value).rstrip(b"=")
    return b"\0" + _length(len(name)) + name.encode() + _length(len(data)) + data


def _length(length: int) -> bytes:
    """A length as an integer of HPACK with a prefix of 7 bits."""
    if length < 127:
        return bytes([length])
    found, length = [127], length - 127
    while length >= 128:
        found.append(length % 128 + 128)
        length //= 128
    return bytes([*found, length])


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := connection.recv(count - len(data))):
        data += more
    return data
