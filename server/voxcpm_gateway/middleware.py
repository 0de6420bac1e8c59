"""The outer layers of the application: the log and the metrics of requests, and the ways to write an address."""

from __future__ import annotations

import asyncio
import logging
import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxcpm_gateway.errors import as_http
from voxcpm_gateway.exchange import REQUEST_ID, Exchange, usable_request_id
from voxcpm_gateway.metrics import GatewayMetrics
from voxcpm_gateway.requests.bodies import ClientGone
from voxcpm_gateway.speech.speaking import CLIENT_CLOSED
from voxcpm_grpc.logs import LogLine

log = logging.getLogger("voxcpm_gateway")

SLASH_AT_END = re.compile(rb"[^/]/\Z")  # a slash that belongs to the name of a voice comes as %2F
PROBES = ("/health", "/ready", "/metrics")  # they are logged at the level debug


class ExchangeLog:
    """Gives each request its id, writes one line of the log for it, without text of callers, and counts it."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._request(scope, receive, send)
            case "websocket":
                await self._handshake(scope, receive, send)
            case _:
                await self._app(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange.of(scope)
        given = Headers(scope=scope).get(REQUEST_ID, "")
        if usable_request_id(given):
            exchange.request_id = given

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                _complete(message, exchange)
            elif message["type"] == "http.response.body":
                exchange.sent_bytes += len(message.get("body", b""))
            await send(message)

        self._metrics.began()
        try:
            await self._app(scope, receive, counted)
        except ClientGone:
            exchange.code, exchange.status = "client_gone", CLIENT_CLOSED
        except asyncio.CancelledError:  # the gateway ends, and the connection with it
            exchange.code = "shutdown"
        except Exception as error:
            log.exception("request id=%s failed", exchange.request_id)
            found = as_http(error, exchange)
            exchange.code = found.code or "internal"
            if not exchange.status:
                await found.response()(scope, receive, counted)
        finally:
            self._metrics.ended(exchange)
            level = logging.DEBUG if exchange.route in PROBES else logging.INFO
            log.log(level, _line(scope, exchange))

    async def _handshake(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An open WebSocket writes a line of its own, so only a refusal has one here."""
        exchange = Exchange.of(scope)

        async def counted(message: Message) -> None:
            if message["type"] == "websocket.http.response.start":
                _complete(message, exchange)
                self._metrics.began()
                self._metrics.ended(exchange)
                log.info(_line(scope, exchange))
            await send(message)

        await self._app(scope, receive, counted)


def _complete(start: Message, exchange: Exchange) -> None:
    """Add to the start of a response what every response has."""
    exchange.status = start["status"]
    headers = exchange.headers | {REQUEST_ID: exchange.request_id}
    start.setdefault("headers", []).extend((name.encode(), value.encode("latin-1")) for name, value in headers.items())


def _line(scope: Scope, exchange: Exchange) -> LogLine:
    client = scope.get("client")
    return LogLine(
        "http",
        request_id=exchange.request_id,
        method=scope.get("method", "GET"),  # a handshake has no method
        route=exchange.route,
        status=exchange.status,
        code=exchange.code,
        peer=client[0] if client else "",
        sent_bytes=exchange.sent_bytes,
        first_audio_seconds=exchange.first_audio_seconds,
        seconds=exchange.seconds,
    )


class Addresses:
    """Lets each address answer with a slash at its end, too.

    A redirect instead would lose the body of a POST, and the host behind some proxies.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            raw: bytes = scope.get("raw_path") or scope["path"].encode()
            if SLASH_AT_END.search(raw):
                scope["path"] = scope["path"][:-1]
        await self._app(scope, receive, send)
