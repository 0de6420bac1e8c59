"""The parser of requests: h11, with limits for heads and an error for the caller for all that it refuses."""

from __future__ import annotations

import re
from typing import Any

import h11

from voxcpm_gateway.errors import HttpError
from voxcpm_grpc.network.credentials import MAX_CREDENTIAL_BYTES

MAX_HEAD = 64 << 10  # bytes; room for a key of 32 KiB
MAX_HEADERS = 128
MAX_TARGET = 8 << 10  # bytes
MAX_FRAME = 32  # bytes around the target in the first line of a request
MAX_REASON = 200
VERSIONS = (b"1.0", b"1.1")
ABSOLUTE = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE)


class RequestParser(h11.Connection):
    """The server's side of a connection.

    `refusal` is the error of a request that `next_event` has refused. The parser takes no more data after it.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self.refusal: HttpError | None = None

    @property
    def has_unread(self) -> bool:
        """True if bytes of the client wait in the parser, or more of a request must follow those that it has read."""
        return self.their_state in (h11.SEND_BODY, h11.ERROR) or bool(self.trailing_data[0])

    def receive_data(self, data: bytes) -> None:
        if data and self.their_state is h11.IDLE and not self.trailing_data[0]:
            data = data.lstrip(b"\r\n")  # old clients send an empty line after a body
            if not data:
                return
        super().receive_data(data)

    def next_event(self) -> Any:
        """The next event, without that of the end of the client's data. Raises h11.RemoteProtocolError."""
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.refusal = self._explained(error)
            raise
        if isinstance(event, h11.Request):
            self.refusal = _refusal(event)
            event = _relative(event)
        elif event is h11.NEED_DATA and self.their_state is h11.IDLE and _is_long_line(self.trailing_data[0]):
            self.refusal = _long_target()
        if self.refusal is not None:
            raise h11.RemoteProtocolError(self.refusal.message, self.refusal.status)
        return h11.NEED_DATA if isinstance(event, h11.ConnectionClosed) else event

    def _explained(self, error: h11.RemoteProtocolError) -> HttpError:
        if error.error_status_hint == 431:
            return _long_target() if _is_long_line(self.trailing_data[0]) else _long_head()
        if self.trailing_data[1]:
            return HttpError(400, "the connection ended before the request was complete", code="invalid_http")
        reason = str(error)[:MAX_REASON]
        if error.error_status_hint == 501:
            return HttpError(501, f"the request cannot be read: {reason}", code="unsupported_transfer_encoding")
        return HttpError(400, f"the request is not valid HTTP: {reason}", code="invalid_http")


def _refusal(request: h11.Request) -> HttpError | None:
    """The error of a head that breaks a limit; None if it keeps all."""
    if request.http_version not in VERSIONS:
        version = request.http_version.decode()
        return HttpError(
            505, f"the request is HTTP/{version}; the gateway speaks HTTP/1.1, and gRPC is on the port of the server"
        )
    if len(request.target) > MAX_TARGET:
        return _long_target()
    if (count := len(request.headers)) > MAX_HEADERS:
        return HttpError(
            431, f"the request has {count} headers and the limit is {MAX_HEADERS}; send fewer", code="headers_too_large"
        )
    size = len(request.method) + len(request.target) + len("  HTTP/1.1\r\n\r\n")
    size += sum(len(name) + len(value) + len(": \r\n") for name, value in request.headers)
    return _long_head() if size > MAX_HEAD else None


def _relative(request: h11.Request) -> h11.Request:
    """The request with a target such as /v1/models, also if the client writes http://HOST/v1/models, as for a proxy.

    Then the host of the target replaces the header, as RFC 9112 demands.
    """
    found = ABSOLUTE.fullmatch(request.target)
    if found is None:
        return request
    return h11.Request(
        method=request.method,
        target=found[2] if found[2].startswith(b"/") else b"/" + found[2],
        headers=[
            (b"host", found[1]),
            *(header for header in request.headers.raw_items() if header[0].lower() != b"host"),
        ],
        http_version=request.http_version,
    )


def _is_long_line(data: bytes) -> bool:
    """True if the first line of a head is not complete, and is longer than one with a target of MAX_TARGET."""
    start = data[: MAX_TARGET + MAX_FRAME + 1]
    return len(start) > MAX_TARGET + MAX_FRAME and b"\n" not in start


def _long_target() -> HttpError:
    return HttpError(
        414,
        f"the address has more than {MAX_TARGET} bytes; send its data in the body of a POST",
        code="uri_too_long",
    )


def _long_head() -> HttpError:
    return HttpError(
        431,
        f"the head of the request has more than {MAX_HEAD} bytes; send shorter headers and cookies, and a key of "
        f"at most {MAX_CREDENTIAL_BYTES} bytes",
        code="headers_too_large",
    )
