"""HTTP over bare connections: requests that no library would send, and responses with their framing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import h11
from support.servers.waiting import HANG_SECONDS


@dataclass(frozen=True)
class Answer:
    """A response.

    headers: by name in lower case; those with the same name are joined by commas
    """

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


class RawConnection:
    """A connection on which bytes are sent, and responses are read one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._waiting = b""

    def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    def half_close(self) -> None:
        self.writer.write_eof()

    async def answer(self, method: str = "POST") -> Answer:
        """The next response. Raises h11.RemoteProtocolError if the connection ends before its end."""
        http = h11.Connection(h11.CLIENT)
        http.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        http.send(h11.EndOfMessage())
        if self._waiting:
            http.receive_data(self._waiting)
        headers: dict[str, str] = {}
        status, body = 0, b""
        while True:
            event = http.next_event()
            match event:
                case h11.NEED_DATA:
                    http.receive_data(await asyncio.wait_for(self.reader.read(65536), HANG_SECONDS))
                case h11.Response():
                    status = event.status_code
                    for name, value in event.headers:
                        known = headers.get(name.decode())
                        headers[name.decode()] = f"{known}, {value.decode()}" if known else value.decode()
                case h11.Data():
                    body += event.data
                case h11.EndOfMessage():
                    self._waiting = http.trailing_data[0]
                    return Answer(status, headers, body)
                case _:
                    pass

    async def until(self, mark: bytes) -> bytes:
        """All that arrives to a mark, and perhaps a little more. Raises AssertionError if the connection ends first."""
        found, self._waiting = self._waiting, b""
        while mark not in found:
            data = await asyncio.wait_for(self.reader.read(65536), HANG_SECONDS)
            assert data, found[-1000:]
            found += data
        return found

    async def rest(self) -> bytes:
        """All that arrives to the end of the connection."""
        return self._waiting + await asyncio.wait_for(self.reader.read(), HANG_SECONDS)


@asynccontextmanager
async def connected(address: tuple[str, int]) -> AsyncIterator[RawConnection]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()


def head(line: str, *headers: str) -> bytes:
    """The head of a request."""
    return "\r\n".join([line, "Host: localhost", *headers, "", ""]).encode("latin-1")


def post(path: str, value: object, *headers: str, version: str = "1.1") -> bytes:
    """A request with JSON."""
    body = json.dumps(value).encode()
    sizes = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    return head(f"POST {path} HTTP/{version}", *sizes, *headers) + body
