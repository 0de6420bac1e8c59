"""The credentials of callers, which the server checks, and the callers that it has accepted lately."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import time

from starlette.requests import HTTPConnection

from voxcpm_client import AsyncClient
from voxcpm_gateway.errors import HttpError
from voxcpm_grpc.network.credentials import fault

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


ASK_SECONDS = 30.0  # from this age on the server is asked again, beside the request of the caller
FORGET_SECONDS = 60.0  # from this age on the request waits for the answer
MOST = 10_000


class KnownCallers:
    """The credentials with which the server has accepted calls, by their digests, and when it did so.

    A caller who speaks often never waits for an answer. The server decides about each call itself, so a key that was
    revoked speaks no more; all that it may do for a while is to send a body in vain.
    """

    def __init__(self) -> None:
        self._accepted: dict[bytes, float] = {}  # the oldest come first
        self._asking: dict[bytes, asyncio.Task[None]] = {}

    async def check(self, client: AsyncClient, credential: str) -> None:
        """Return if the server accepts calls of this client, whose credential may be empty. Raises SpeechError."""
        digest = hashlib.sha256(credential.encode()).digest()
        age = time.monotonic() - self._accepted.get(digest, -math.inf)
        if age < ASK_SECONDS:
            return
        if (asking := self._asking.get(digest)) is None:
            asking = self._asking[digest] = asyncio.create_task(self._ask(client, digest))
            asking.add_done_callback(lambda task: self._forget(digest, task))
        if age > FORGET_SECONDS:
            await asyncio.shield(asking)

    async def _ask(self, client: AsyncClient, digest: bytes) -> None:
        try:
            await client.model_info()
        finally:
            self._accepted.pop(digest, None)
        self._accepted[digest] = time.monotonic()
        if len(self._accepted) > MOST:
            del self._accepted[next(iter(self._accepted))]

    def _forget(self, digest: bytes, task: asyncio.Task[None]) -> None:
        del self._asking[digest]
        if not task.cancelled():
            task.exception()  # it may have no reader
