"""One request and its response, as the log and the metrics describe them, and routes that give it their address."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette import routing
from starlette.types import Receive, Scope, Send

KEY = "voxcpm_gateway.exchange"
REQUEST_ID = "x-request-id"
MAX_REQUEST_ID = 128
NO_FIELDS: Mapping[str, str] = {"id": "id", "voice": "id"}  # a request without a body has the id in its address


def no_fields() -> Mapping[str, str]:
    return NO_FIELDS


@dataclass(slots=True)
class Exchange:
    """One request and its response.

    request_id: the caller's, or one made here; the server's log has the same
    route: the address as the routes write it, such as /v1/models/{id}; empty for unknown ones, which are without number
    code: a word for the reason of an error; empty without one
    headers: those of the response whatever it is, beside the request id
    first_audio_seconds: from the arrival of the request to the first audio; None without audio
    names: returns the fields of the caller's request by those of the gRPC request that they set, for errors
    """

    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    route: str = ""
    status: int = 0
    sent_bytes: int = 0
    code: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    first_audio_seconds: float | None = None
    names: Callable[[], Mapping[str, str]] = no_fields
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @classmethod
    def of(cls, scope: MutableMapping[str, Any]) -> Exchange:
        """The exchange of an ASGI scope."""
        if KEY not in scope:
            scope[KEY] = cls()
        found: Exchange = scope[KEY]
        return found


def usable_request_id(text: str) -> bool:
    """True if a caller may choose this request id."""
    return 0 < len(text) <= MAX_REQUEST_ID and text.isascii() and text.isprintable()


class Route(routing.Route):
    """A route that gives its address to the exchange. Starlette tells which route it took from 1.8 on only."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        Exchange.of(scope).route = self.path.replace(":path}", "}")
        await super().handle(scope, receive, send)
