"""The credentials of callers. The server checks them; the gateway only passes them on."""

from __future__ import annotations

import re

from starlette.requests import HTTPConnection

from voxcpm_client import AsyncClient
from voxcpm_gateway.errors import HttpError
from voxcpm_grpc.credentials import fault

SCHEME = "bearer"
NOT_PRINTABLE = re.compile("[^ -~]")


def caller_metadata(connection: HTTPConnection, key: str = "") -> dict[str, str]:
    """The gRPC metadata that identify the caller of an HTTP connection: its header `authorization: Bearer`, if any.

    Headers of other schemes are for others, such as a proxy in front. Only the server knows if it needs a key, so that
    it gets what can be no key, too: several keys as one, and other characters than printable ASCII as `?`. Raises
    HttpError for a long credential.

    key: a key that the caller gave elsewhere, which precedes that of the header; empty for none
    """
    headers = (header.strip().partition(" ") for header in connection.headers.getlist("authorization"))
    found = dict.fromkeys(credential.strip() for scheme, _, credential in headers if scheme.lower() == SCHEME)
    credential = key or NOT_PRINTABLE.sub("?", ", ".join(filter(None, found)))
    if text := fault(len(credential)):
        raise HttpError(431, text, code="credential_too_long")
    return {"authorization": f"Bearer {credential}"} if credential else {}


def caller_client(connection: HTTPConnection, key: str = "") -> AsyncClient:
    """The client of the gateway with the credentials of the caller. It needs no closing. Raises HttpError."""
    client: AsyncClient = connection.app.state.client
    metadata = caller_metadata(connection, key)
    return client.with_metadata(metadata) if metadata else client
