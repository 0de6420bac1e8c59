"""The outer layers of the application: the log and the metrics of requests, and the check of origins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxcpm_gateway.bodies import ClientGone
from voxcpm_gateway.errors import HttpError, as_http
from voxcpm_gateway.exchange import Exchange, usable_request_id
from voxcpm_gateway.metrics import GatewayMetrics
from voxcpm_gateway.speaking import CLIENT_CLOSED
from voxcpm_grpc.logs import LogLine

log = logging.getLogger("voxcpm_gateway")

REQUEST_ID = "x-request-id"
PROBES = ("/health", "/ready", "/metrics")  # logged at the level debug


class ExchangeLog:
    """Gives each request its id, writes one line of the log for it, without text of callers, and counts it."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange.of(scope)
        given = Headers(scope=scope).get(REQUEST_ID, "")
        if usable_request_id(given):
            exchange.request_id = given

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message.setdefault("headers", []).append((REQUEST_ID.encode(), exchange.request_id.encode()))
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
            exchange.route = _route(scope)
            self._metrics.ended(exchange)
            level = logging.DEBUG if exchange.route in PROBES else logging.INFO
            log.log(level, _line(scope, exchange))


def _route(scope: Scope) -> str:
    """The address as the routes write it; empty for unknown addresses, which are without number."""
    route = scope.get("route")
    return route.path.replace(":path}", "}") if isinstance(route, Route) else ""


def _line(scope: Scope, exchange: Exchange) -> LogLine:
    client = scope.get("client")
    return LogLine(
        "http",
        request_id=exchange.request_id,
        method=scope["method"],
        route=exchange.route,
        status=exchange.status,
        code=exchange.code,
        peer=client[0] if client else "",
        sent_bytes=exchange.sent_bytes,
        first_audio_seconds=exchange.first_audio_seconds,
        seconds=exchange.seconds,
    )


class OriginCheck:
    """Refuses requests that browsers send for pages of other origins, unless the origin is allowed.

    Without it, any web page could speak and store voices through a gateway that only its visitor can reach.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and not is_allowed(Headers(scope=scope), self._allowed):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": "origin not allowed"})
                return
            error = HttpError(
                403,
                "the origin of this page may not call the gateway; its operator allows it with allowed_origins",
                code="origin_not_allowed",
            )
            Exchange.of(scope).code = error.code or ""
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)


def is_allowed(headers: Headers, allowed: Collection[str]) -> bool:
    """True for a request without an origin, of the gateway's own pages, or of an origin that is allowed."""
    origin = headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return True
    return urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
