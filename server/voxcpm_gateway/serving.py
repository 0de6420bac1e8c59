"""The HTTP server of a gateway: uvicorn, with timeouts for clients that send or read nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http import auto

from voxcpm_gateway.app import create_app
from voxcpm_gateway.config import GatewayConfig
from voxcpm_grpc.errors import StartupError

log = logging.getLogger("voxcpm_gateway")

HEAD_SECONDS = 30.0  # from the connection, or the first byte of a request, to the end of its headers
STOP_SECONDS = 10.0  # for requests in progress when the gateway ends
KEEP_ALIVE_SECONDS = 75  # of a connection without requests; more than the 60 s of many proxies
BACKLOG = 2048
MAX_WEBSOCKET_MESSAGE = 20 << 20  # room for two recordings of 6 MiB in base64
PROBE_SECONDS = 30  # of a connection without a packet, after which the kernel looks for its other end
PROBES = 4
EXPECTED = (
    "ASGI callable returned without completing response.",  # a stream that failed is ended so
    "ASGI callable returned without completing handshake.",  # a refused WebSocket has had its response
)


class Server(uvicorn.Server):
    """A server whose signals are handled by its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of a gateway: uvloop's if it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def listening(listen: str, *, shared: bool = False) -> socket.socket:
    """A socket that listens on `HOST:PORT`. Raises StartupError.

    shared: other processes may listen on the same port
    """
    host, _, port = listen.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise StartupError(f"cannot listen on {listen}; name a host and a port, such as 127.0.0.1:8000")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.bind(address)
        opened.listen(BACKLOG)
    except OSError as error:
        raise StartupError(f"cannot listen on {listen}: {error.strerror or error}") from None
    return opened


def address_of(opened: socket.socket) -> str:
    """The address of a socket as HOST:PORT."""
    host, port = opened.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def server(config: GatewayConfig) -> Server:
    """The HTTP server of a gateway, to run with `serve(sockets=[...])` and to end with `should_exit`."""
    return Server(
        uvicorn.Config(
            create_app(config),
            http=timed_protocol(config.write_seconds),
            log_config=None,
            access_log=False,
            server_header=False,
            ws_max_size=MAX_WEBSOCKET_MESSAGE,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(STOP_SECONDS),
        )
    )


async def serve(config: GatewayConfig, opened: socket.socket) -> None:
    """Serve on a socket until the task is cancelled; then requests in progress have STOP_SECONDS to end."""
    quiet()
    running = server(config)
    serving = asyncio.ensure_future(running.serve(sockets=[opened]))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        running.should_exit = True
        await serving


async def serve_until_signal(config: GatewayConfig, opened: socket.socket, *signals: signal.Signals) -> None:
    """As `serve`, until one of the signals arrives. A second one does not wait for requests in progress."""
    serving = asyncio.ensure_future(serve(config, opened))
    for number in signals:
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def quiet() -> None:
    """Keep uvicorn's lines about what the gateway does on purpose out of the log."""
    logger = logging.getLogger("uvicorn.error")
    if not any(isinstance(found, _ExpectedFilter) for found in logger.filters):
        logger.addFilter(_ExpectedFilter())


class _ExpectedFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg not in EXPECTED


def timed_protocol(write_seconds: float, head_seconds: float = HEAD_SECONDS) -> type[asyncio.Protocol]:
    """The class of connections: uvicorn's, with timeouts.

    write_seconds: time after which a connection is cut off if its client reads nothing
    head_seconds: time after which it is cut off if no request has arrived, or only a part of its headers
    """

    base: Any = auto.AutoHTTPProtocol  # httptools' or h11's

    class TimedProtocol(base):
        _head: asyncio.TimerHandle | None = None
        _stalled: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            _keep_alive(transport.get_extra_info("socket"))
            self._expect_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.transport.get_protocol() is not self or (self.cycle and not self.cycle.response_complete):
                self._head = _cancelled(self._head)  # a request has arrived, or a WebSocket takes over
            else:
                self._expect_head()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stalled = self._stalled or self.loop.call_later(write_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            self._stalled = _cancelled(self._stalled)
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stalled, self._head = _cancelled(self._stalled), _cancelled(self._head)
            super().connection_lost(exc)

        def _expect_head(self) -> None:
            self._head = self._head or self.loop.call_later(head_seconds, self.transport.abort)

    return TimedProtocol


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _keep_alive(opened: socket.socket | None) -> None:
    """Have the kernel find connections whose other end is gone without a word."""
    if opened is None or opened.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError, AttributeError):
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS // PROBES)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
