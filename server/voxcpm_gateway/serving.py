"""The HTTP server of a gateway: uvicorn, with connections of our own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from voxcpm_gateway.app import create_app
from voxcpm_gateway.config import GatewayConfig
from voxcpm_gateway.connections.handshake import WebSocketConnection
from voxcpm_gateway.connections.http_connection import ConnectionOptions, HttpConnection
from voxcpm_gateway.connections.open_connections import WaitingConnections, most_waiting
from voxcpm_gateway.errors import HttpError
from voxcpm_gateway.exchange import Exchange
from voxcpm_gateway.metrics import GatewayMetrics
from voxcpm_gateway.middleware import ExchangeLog
from voxcpm_gateway.routes import websocket
from voxcpm_grpc.network.addresses import ListenAddress, bound, cannot_listen

log = logging.getLogger("voxcpm_gateway")

STOP_SECONDS = 10.0  # seconds for requests in progress when the gateway ends
KEEP_ALIVE_SECONDS = 75  # seconds of a connection without requests; many proxies keep theirs for 60 s
BACKLOG = 2048
MAX_WEBSOCKET_MESSAGE = 20 << 20  # bytes: two recordings of 6 MiB in base64 have room
EXPECTED = (
    "ASGI callable returned without completing response.",  # a stream that failed is ended so
    "ASGI callable returned without completing handshake.",  # a refused WebSocket has had its response
    "Invalid HTTP request received.",  # the request has a line of the gateway
)


class Server(uvicorn.Server):
    """A server whose signals are handled by its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listening(listen: str, *, shared: bool = False) -> socket.socket:
    """A socket that listens on `HOST:PORT`. Raises StartupError.

    shared: other processes may listen on the same port
    """
    opened = bound(listen, shared=shared)
    try:
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise cannot_listen(listen, error) from None
    return opened


def address_of(opened: socket.socket) -> str:
    """The address of a socket as HOST:PORT."""
    host, port = opened.getsockname()[:2]
    return str(ListenAddress(host, port))


def server(config: GatewayConfig) -> Server:
    """The HTTP server of a gateway, to run with `serve(sockets=[...])` and to end with `should_exit`."""
    app = create_app(config)
    options = ConnectionOptions(
        head_seconds=config.head_seconds,
        write_seconds=config.write_seconds,
        websocket_path=websocket.PATH,
        waiting=WaitingConnections(config.max_waiting or most_waiting()),
        refused=partial(_refused, app.state.gateway.metrics),
    )
    return Server(
        uvicorn.Config(
            app,
            http=cast(Any, partial(HttpConnection, options=options)),
            ws=WebSocketConnection,
            log_config=None,
            access_log=False,
            server_header=False,
            ws_max_size=MAX_WEBSOCKET_MESSAGE,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(STOP_SECONDS),
        )
    )


def _refused(metrics: GatewayMetrics, error: HttpError) -> ASGIApp:
    """The application for a request without a head: it answers with an error, and logs and counts it as others."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        Exchange.of(scope).code = error.code or ""
        await error.response()(scope, receive, send)

    return ExchangeLog(answer, metrics)


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


async def serve_until_signal(
    config: GatewayConfig,
    opened: socket.socket,
    *signals: signal.Signals,
    announce: Callable[[], None] = lambda: None,
) -> None:
    """Do the same as `serve`, until one of the signals arrives. A second one does not wait for requests in progress.

    announce: called once the signals have their effect
    """
    serving = asyncio.ensure_future(serve(config, opened))
    for number in signals:
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    announce()
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
