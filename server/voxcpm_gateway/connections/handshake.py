"""The handshake of WebSockets, from a head that the parser of requests has read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.exceptions import InvalidUpgrade
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.http11 import Request
from websockets.server import ServerProtocol

from voxcpm_gateway.errors import HttpError

VERSION = "13"
EMPTY_HEAD = b"GET / HTTP/1.1\r\n\r\n"
CLOSED = {"connection": "close"}
UPGRADE = {"connection": "upgrade, close", "upgrade": "websocket", "sec-websocket-version": VERSION}


def refusal(scope: Mapping[str, Any]) -> HttpError | None:
    """The reason for which a request, as an ASGI scope, does not open a WebSocket; None if it does."""
    request = _request(scope)
    protocol = ServerProtocol(extensions=[ServerPerMessageDeflateFactory()])
    opens = protocol.accept(request).status_code == 101
    if scope["method"] != "GET" or isinstance(protocol.handshake_exc, InvalidUpgrade):
        return no_handshake()
    versions = request.headers.get_all("sec-websocket-version")
    if versions != [VERSION] or scope["http_version"] != "1.1":
        return HttpError(
            426,
            f"the WebSocket handshake has the version {', '.join(versions)[:60] or 'none'} over "
            f"HTTP/{scope['http_version']}; it must be version {VERSION} over HTTP/1.1",
            code="upgrade_required",
            headers=UPGRADE,
        )
    if has_body(scope["headers"]):
        return HttpError(
            400, "the WebSocket handshake has a body; send messages after it", code="invalid_handshake", headers=CLOSED
        )
    if opens:
        return None
    return HttpError(
        400,
        f"the WebSocket handshake is not valid: {str(protocol.handshake_exc)[:200]}",
        code="invalid_handshake",
        headers=CLOSED,
    )


def no_handshake() -> HttpError:
    return HttpError(
        426,
        "this address is a WebSocket; open it with a WebSocket client, at ws:// instead of http://",
        code="upgrade_required",
        headers=UPGRADE,
    )


def has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True if a request with these headers, whose names are in lower case, has a body."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0")) for name, value in headers
    )


def _request(scope: Mapping[str, Any]) -> Request:
    """The request as websockets sees it: the handshake has ASCII characters only."""
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    headers = Headers((name.decode("ascii"), value.decode("ascii", "ignore")) for name, value in scope["headers"])
    return Request((scope["raw_path"] + query).decode("ascii"), headers)


class WebSocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket whose handshake was read as an HTTP request."""

    def open(self, scope: Mapping[str, Any]) -> None:
        """Answer the handshake: start the application, which accepts or refuses it.

        websockets reads no head of its own. It would leave one with a line of more than 8 KiB, or more than 128
        headers, without an answer.
        """
        self.conn.receive_data(EMPTY_HEAD)
        self.conn.events_received()
        self.handle_connect(_request(scope))
        self.scope["headers"] = scope["headers"]
