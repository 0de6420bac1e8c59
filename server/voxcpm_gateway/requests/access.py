"""The check of hosts and origins, which keeps pages of other sites out, and the headers that let allowed pages in."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from voxcpm_gateway.errors import HttpError
from voxcpm_gateway.exchange import REQUEST_ID, Exchange
from voxcpm_grpc.network.web_names import DEFAULT_PORTS, EVERY, host_and_port, is_address, origin

LOCAL = "localhost"
METHODS = "GET, HEAD, POST, DELETE"
AUDIO_HEADERS = ("x-audio-sample-rate", "x-audio-channels", "x-audio-encoding")
EXPOSED = ", ".join((REQUEST_ID, "retry-after", "www-authenticate", "allow", *AUDIO_HEADERS))
PREFLIGHT_SECONDS = 600
MAX_SHOWN = 100  # characters of a host


class Access:
    """Refuses requests to hosts that the gateway does not have, and those of pages of other origins.

    A page whose name is made to resolve to the gateway's address (DNS rebinding) has the gateway's own origin for its
    browser: only the header Host tells its requests from those of the gateway's own page. A page of another origin has
    that in the header Origin. Without the two checks, any page could speak and store voices through a gateway that
    only its visitor can reach.

    hosts: names that the gateway has beside its addresses and localhost, as `allowed_host` returns them
    origins: those of pages that may call, as `allowed_origin` returns them
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], origins: Collection[str]) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers, exchange = Headers(scope=scope), Exchange.of(scope)
        exchange.headers |= self._response_headers(headers)
        try:
            self._check_host(scope, headers)
            self._check_origin(headers)
        except HttpError as error:
            exchange.code = error.code or ""
            await error.response()(scope, receive, send)
            return
        if scope["type"] == "http" and self._is_preflight(scope, headers):
            await _preflight(headers)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_host(self, scope: Scope, headers: Headers) -> None:
        """Raises HttpError for a request to another host, or to none."""
        if EVERY in self._hosts:
            return
        given = headers.getlist("host")
        may_lack = scope.get("http_version") == "1.0"  # no browser speaks HTTP/1.0
        if len(given) > 1 or not (given or may_lack):
            raise HttpError(400, f"the request has {len(given)} headers Host; send one", code="invalid_host")
        for one in given:
            if not self._is_ours(one):
                raise HttpError(
                    421,
                    f"this gateway does not answer to the host {_shown(one)}; call it by its IP address or as "
                    "localhost, or let its operator allow the name: `http.allowed_hosts` of `voxcpm-grpc serve`, "
                    "`--allowed-host` of `voxcpm-grpc gateway`",
                    code="host_not_allowed",
                )

    def _is_ours(self, text: str) -> bool:
        found = host_and_port(text)
        if found is None:
            return False
        host = found[0]
        _, _, parent = host.partition(".")
        return (
            is_address(host)
            or host == LOCAL
            or host.endswith(f".{LOCAL}")  # no name server has names of this domain
            or host in self._hosts
            or f"*.{parent}" in self._hosts
        )

    def _check_origin(self, headers: Headers) -> None:
        """Raises HttpError for a page of another origin, unless it is allowed."""
        given = headers.get("origin")
        if given is None or self._is_granted(given) or _is_own(given, headers):
            return
        raise HttpError(
            403,
            f"pages of the origin {_shown(given)} may not call this gateway; its operator can allow it: "
            "`http.allowed_origins` of `voxcpm-grpc serve`, `--allowed-origin` of `voxcpm-grpc gateway`",
            code="origin_not_allowed",
        )

    def _is_granted(self, given: str) -> bool:
        return EVERY in self._origins or origin(given) in self._origins

    def _is_preflight(self, scope: Scope, headers: Headers) -> bool:
        asks = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        return asks and self._is_granted(headers.get("origin", ""))

    def _response_headers(self, headers: Headers) -> dict[str, str]:
        """The headers of every response, also of one with an error, without which a page cannot read it."""
        if not self._origins:
            return {}
        if EVERY in self._origins:
            return {"access-control-allow-origin": EVERY, "access-control-expose-headers": EXPOSED}
        found = {"vary": "Origin"}
        if self._is_granted(given := headers.get("origin", "")):
            found |= {"access-control-allow-origin": given, "access-control-expose-headers": EXPOSED}
        return found


def _is_own(given: str, headers: Headers) -> bool:
    """True if a page is the gateway's own. A proxy with TLS passes on the host, but not the scheme."""
    scheme, _, _ = given.lower().partition("://")
    found = origin(given)
    return found is not None and scheme in DEFAULT_PORTS and found == origin(f"{scheme}://{headers.get('host', '')}")


def _preflight(headers: Headers) -> Response:
    """The answer to a browser that asks if a page may send a request."""
    found = {"access-control-allow-methods": METHODS, "access-control-max-age": str(PREFLIGHT_SECONDS)}
    if wanted := headers.get("access-control-request-headers"):
        # The value is a list, because `*` does not include authorization.
        found["access-control-allow-headers"] = wanted
    if headers.get("access-control-request-private-network") == "true":
        found["access-control-allow-private-network"] = "true"
    return PlainTextResponse("", headers=found)


def _shown(text: str) -> str:
    """A text of a caller for a message, without characters that a terminal might obey."""
    return ascii(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")
