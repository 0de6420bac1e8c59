"""The callers that the server has accepted lately. The gateway reads the bodies of no others."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time

from voxcpm_client import AsyncClient

ASK_SECONDS = 30.0  # age at which the server is asked again, beside the request of the caller
FORGET_SECONDS = 60.0  # age at which the request waits for the answer
MOST = 10_000


class KnownCallers:
    """The credentials with which the server has accepted calls, by their digests, and when it did so.

    A caller who speaks often never waits for an answer. The server decides about each call itself, so a key that was
    revoked speaks no more; all that it may do for a while is to send a body in vain.
    """

    def __init__(self) -> None:
        self._accepted: dict[bytes, float] = {}  # the oldest first
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
