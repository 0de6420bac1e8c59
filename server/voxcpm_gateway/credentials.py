"""The credentials of callers. The server checks them; the gateway only passes them on."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from voxcpm_client import AsyncClient
from voxcpm_gateway.errors import HttpError
from voxcpm_grpc.credentials import fault

SCHEME = "bearer"


def caller_metadata(connection: HTTPConnection) -> dict[str, str]:
    """The gRPC metadata that identify the caller of an HTTP connection: its header `authorization: Bearer`, if any.

    Raises HttpError for another scheme, for characters that a header cannot have, and for a long credential.
    """
    found = connection.headers.getlist("authorization")
    if not found:
        return {}
    if len(found) > 1:
        raise HttpError(401, "the request has several headers `authorization`; send one")
    scheme, _, credential = found[0].strip().partition(" ")
    credential = credential.strip()
    if scheme.lower() != SCHEME or not (credential.isascii() and credential.isprintable()):
        raise HttpError(401, "the header `authorization` must be `Bearer KEY`, with a key of ASCII characters")
    return bearer(credential) if credential else {}


def bearer(credential: str) -> dict[str, str]:
    """The gRPC metadata of a credential. Raises HttpError for one that is too long."""
    if text := fault(len(credential)):
        raise HttpError(431, text, code="credential_too_long")
    return {"authorization": f"Bearer {credential}"}


def caller_client(connection: HTTPConnection) -> AsyncClient:
    """The client of the gateway with the credentials of the caller. It needs no closing. Raises HttpError."""
    client: AsyncClient = connection.app.state.client
    metadata = caller_metadata(connection)
    return client.with_metadata(metadata) if metadata else client
