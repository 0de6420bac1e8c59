"""The connections of clients: uvicorn's, with limits of time, room and number, that answer whatever arrives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from voxcpm_gateway.connections import handshake, open_connections
from voxcpm_gateway.connections.open_connections import WaitingConnections
from voxcpm_gateway.connections.request_parser import RequestParser
from voxcpm_gateway.errors import HttpError

log = logging.getLogger("voxcpm_gateway")

MAX_DISCARDED = 64 << 10  # bytes of a body that nobody reads, in a connection that stays open
LINGER_SECONDS = 5.0  # seconds for a client to read the answer to a request that it is still sending
LINGER_BYTES = 8 << 20  # bytes that are thrown away meanwhile: room for a recording of the largest size
PROBE_SECONDS = 30  # a connection without a packet for so long makes the kernel look for its other end
PROBES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The limits of connections, and what they share.

    head_seconds: time after which a connection is cut off if no request has arrived, or only a part of its head
    write_seconds: time after which it is cut off if its client reads nothing
    websocket_path: address at which a connection becomes a WebSocket
    refused: makes the application that answers a request whose head is refused
    """

    head_seconds: float
    write_seconds: float
    websocket_path: str
    waiting: WaitingConnections
    refused: Callable[[HttpError], ASGIApp]


class HttpConnection(H11Protocol):
    """One connection of a client.

    It waits for a request (the head of one, or the rest of a body that nobody reads) or serves one. While it waits, a
    timer runs: uvicorn's for an open connection without requests, else that of `head_seconds`. uvicorn parses with h11
    here also if httptools is installed, which loses the body of a request that offers an upgrade, and sends chunks to
    clients of HTTP/1.0.
    """

    def __init__(self, *, options: ConnectionOptions, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self.conn: RequestParser = RequestParser()
        self._app: Any = self.app
        self.app = self._serve
        self._options = options
        self._socket: asyncio.Transport
        self._head: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._thrown_away = 0
        self._half_closed: asyncio.Task[None] | None = None
        self._lost = False

    @property
    def _is_serving(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # ---- from the client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._socket = transport
        _keep_alive(transport.get_extra_info("socket"))
        super().connection_made(_Transport(transport, self._close))  # type: ignore[arg-type]
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._thrown_away += len(data)
            if self._thrown_away > LINGER_BYTES:
                self._socket.abort()
        elif self.conn.refusal is None:
            super().data_received(data)
            self._wait()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Returns True to keep the connection for the answer to a request that has arrived whole."""
        if self._lingering:
            return False
        if self.conn.refusal is None:
            self.conn.receive_data(b"")
            self.handle_events()
        opened = self._socket.get_extra_info("socket")
        if not self._is_serving or opened is None or not open_connections.can_tell(opened):
            return False
        if self._half_closed is None:
            connection = socket.socket(fileno=os.dup(opened.fileno()))
            self._half_closed = self.loop.create_task(self._cut_off_if_gone(connection))
        return True

    async def _cut_off_if_gone(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            await open_connections.reset(connection)
        self._socket.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        for running in (self._head, self._stalled, self._lingering, self._half_closed):
            if running is not None:
                running.cancel()
        self._options.waiting.discard(self._socket)
        super().connection_lost(exc)
        self._lost = True
        self._free()

    def _free(self) -> None:
        """Drop what refers to this connection, so that its memory is free without the garbage collector."""
        self.app = self._app
        cast(_Transport, self.transport).free()
        self._half_closed = None
        if not self._is_serving:
            self.cycle = None  # type: ignore[assignment]

    # ---- requests

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application. If it answers before a body has arrived, the connection ends with the answer.

        A short body is thrown away, and the connection stays.
        """
        if not handshake.has_body(scope["headers"]):
            await self._app(scope, receive, send)
            return

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._leaves_body(scope):
                message["headers"] = [*message.get("headers", ()), CLOSE_HEADER]
            await send(message)

        await self._app(scope, receive, closing)

    def _leaves_body(self, scope: Scope) -> bool:
        if self.conn.their_state is not h11.SEND_BODY:
            return False
        length = dict(scope["headers"]).get(b"content-length")
        return length is None or int(length) > MAX_DISCARDED or self.conn.they_are_waiting_for_100_continue

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser has refused, instead of uvicorn with 400 and `msg`."""
        assert self.conn.refusal is not None
        if self._is_serving:
            if self.cycle.response_started:
                self._socket.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "",
            "scheme": "http",
            "path": "",
            "raw_path": b"",
            "query_string": b"",
            "root_path": self.root_path,
            "headers": [CLOSE_HEADER],
            "client": self.client,
            "server": self.server,
        }
        self.cycle = RequestResponseCycle(
            scope=self.scope,
            conn=self.conn,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            on_response=self.on_response_complete,
        )
        application: Any = self._options.refused(self.conn.refusal)
        task = self.loop.create_task(self.cycle.run_asgi(application))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._lost:
            self._free()
            return
        if not self._is_serving:
            if self._half_closed:
                self.transport.close()
            elif self.conn.has_unread:
                self._unset_keepalive_if_required()
        self._wait()

    # ---- WebSockets

    def _should_upgrade(self) -> bool:
        is_address = self.scope["path"].rstrip("/") == self._options.websocket_path
        return is_address and handshake.refusal(self.scope) is None

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self.connections.discard(self)
        self._unset_keepalive_if_required()
        protocol = handshake.WebSocketConnection(
            config=self.config, server_state=self.server_state, app_state=self.app_state
        )
        protocol.connection_made(self._socket)
        self._socket.set_protocol(protocol)
        self._wait()
        protocol.open(self.scope)
        if data := self.conn.trailing_data[0]:
            protocol.data_received(data)
        self._free()

    # ---- limits

    def _wait(self) -> None:
        """Start the timer of a connection that waits for a request; stop it for one that serves one, or has ended."""
        if self._lingering:
            return
        if self._is_serving or self.transport.is_closing() or self._socket.get_protocol() is not self:
            self._options.waiting.discard(self._socket)
            if self._head is not None:
                self._head.cancel()
                self._head = None
            return
        self._options.waiting.add(self._socket)
        if self.timeout_keep_alive_task is None and self._head is None:
            self._head = self.loop.call_later(self._options.head_seconds, self._cut_off)

    def _cut_off(self) -> None:
        level = logging.INFO if self.conn.has_unread else logging.DEBUG
        peer = self.client[0] if self.client else "-"
        log.log(level, "closed a connection of %s without a whole request in %g s", peer, self._options.head_seconds)
        self._socket.abort()

    def _close(self) -> None:
        """Close the connection; if its client is still sending, only after it has had time to read the answer.

        The kernel resets a closed connection at the next byte of its client, who then may lose the answer.
        """
        if self._socket.is_closing():
            return
        if self._is_serving and self.cycle.scope["http_version"] == "1.0":
            self._reset()
        elif self._lingering or self._half_closed or self._is_serving or not self.conn.has_unread:
            self._socket.close()
        else:
            self._lingering = self.loop.call_later(LINGER_SECONDS, self._socket.abort)
            self._options.waiting.add(self._socket)
            self.flow.resume_reading()
            self._socket.write_eof()

    def _reset(self) -> None:
        """Cut off a response that has failed, to a client for whom the end of the connection is the end of the body."""
        if (opened := self._socket.get_extra_info("socket")) is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.abort()

    def shutdown(self) -> None:
        super().shutdown()
        if not self._is_serving:
            self._socket.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self._stalled or self.loop.call_later(self._options.write_seconds, self._socket.abort)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()


class _Transport:
    """A transport of asyncio whose `close` another function does."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self._close = close
        self._closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self._closing = True
        self._close()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def free(self) -> None:
        """Drop the function that closes."""
        self._close = self._transport.close


def _keep_alive(opened: socket.socket | None) -> None:
    """Have the kernel find connections whose other end is gone without a word."""
    if opened is None or opened.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError, AttributeError):
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS // PROBES)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
