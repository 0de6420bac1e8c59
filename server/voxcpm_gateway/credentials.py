"""The credentials of callers. The server checks them; the gateway only passes them on."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from voxcpm_client import AsyncClient
from voxcpm_gateway.errors import HttpError

SCHEME = "bearer"


def caller_metadata(connection: HTTPConnection, key: str = "") -> dict[str, str]:
    """The gRPC metadata that identify the caller of an HTTP connection: its header `authorization: Bearer`, if any.

    Raises HttpError for another scheme, and for characters that a header cannot have.

    key: a key that the caller gave elsewhere, which precedes that of the header; empty for none
    """
    if key:
        return {"authorization": f"Bearer {key}"}
    found = connection.headers.getlist("authorization")
    if not found:
        return {}
    if len(found) > 1:
        raise HttpError(401, "the request has several headers `authorization`; send one")
    scheme, _, credential = found[0].strip().partition(" ")
    credential = credential.strip()
    if scheme.lower() != SCHEME or not (credential.isascii() and credential.isprintable()):
        raise HttpError(401, "the header `authorization` must be `Bearer KEY`, with a key of ASCII characters")
    return {"authorization": f"Bearer {credential}"} if credential else {}


def caller_client(connection: HTTPConnection, key: str = "") -> AsyncClient:
    """The client of the gateway with the credentials of the caller. It needs no closing. Raises HttpError."""
    client: AsyncClient = connection.app.state.client
    metadata = caller_metadata(connection, key)
    return client.with_metadata(metadata) if metadata else client
