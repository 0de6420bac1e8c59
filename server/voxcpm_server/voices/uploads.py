"""Recordings that arrive in parts, and the memory that all of them may take."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager

from voxcpm_grpc.errors import Exhausted, InvalidRequest
from voxcpm_server.voices.io_threads import IoThreads
from voxcpm_server.wire.inputs import Commit, Digest, Part, Role, UploadConfig, UploadInput

BUDGET_RETRY_SECONDS = 2.0
Take = Callable[[int, str], None]


class UploadBudget:
    """The bytes of recordings that may be in memory at once, whoever sent them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0

    @property
    def held(self) -> int:
        return self._held

    @contextmanager
    def account(self) -> Iterator[Take]:
        """A function that takes bytes for a request field; all are given back at the end of the block.

        It raises Exhausted when others hold too much, and InvalidRequest for what would not fit even alone. Nobody
        waits for bytes: two uploads that do would hold each other up.
        """
        mine = 0

        def take(size: int, field: str) -> None:
            nonlocal mine
            if mine + size > self._limit:
                raise InvalidRequest(
                    f"the recordings of this stream have {mine + size} bytes or more and the limit is {self._limit}; "
                    "send compressed ones",
                    field=field,
                )
            if self._held + size > self._limit:
                raise Exhausted(
                    f"{size} bytes more do not fit beside the {self._held} that uploads hold: the limit of all "
                    f"together is {self._limit}; retry later",
                    retry_after=BUDGET_RETRY_SECONDS,
                )
            mine += size
            self._held += size

        try:
            yield take
        finally:
            self._held -= mine


async def next_message(messages: AsyncIterator[UploadInput], idle_seconds: float) -> UploadInput:
    """The next message. Raises InvalidRequest for a caller that is silent or ends the stream: without a commit, a
    finished upload cannot be told from a broken connection."""
    try:
        async with asyncio.timeout(idle_seconds):
            return await anext(messages)
    except TimeoutError:
        raise InvalidRequest(
            f"nothing arrived for {idle_seconds:g} s within an upload; send parts without pauses, then commit"
        ) from None
    except StopAsyncIteration:
        raise InvalidRequest("the upload ended without a commit; it was discarded", field="commit") from None


async def read_config(messages: AsyncIterator[UploadInput], idle_seconds: float) -> UploadConfig:
    config = await next_message(messages, idle_seconds)
    if not isinstance(config, UploadConfig):
        raise InvalidRequest("the first message of an upload must be its config", field="config")
    return config


async def receive(
    messages: AsyncIterator[UploadInput],
    roles: Sequence[Role],
    *,
    max_bytes: int,
    idle_seconds: float,
    take: Take,
    threads: IoThreads,
) -> dict[Role, bytes]:
    """Every announced recording, complete and as its digest says; `take` is told of its bytes before they are kept.

    Raises InvalidRequest, and what `take` raises.
    """
    arrived = {role: bytearray() for role in roles}  # a list of parts of a few bytes each would take far more memory
    while True:
        match await next_message(messages, idle_seconds):
            case Part(data, offset, role):
                role = _role(role, roles, "audio.role")
                _check_part(len(data), offset, len(arrived[role]), max_bytes)
                take(len(data), "audio.data")
                arrived[role] += data
            case Commit(digests):
                by_role = _by_role(digests, roles)
                return {role: await threads.run(_checked, arrived.pop(role), by_role[role]) for role in roles}
            case UploadConfig():
                raise InvalidRequest("config was sent twice", field="config")


def _check_part(size: int, offset: int, expected: int, max_bytes: int) -> None:
    if offset != expected:
        raise InvalidRequest(
            f"a part begins at byte {offset} where byte {expected} is next; parts must follow without gaps",
            field="audio.offset_bytes",
        )
    if expected + size > max_bytes:
        raise InvalidRequest(
            f"the recording has {expected + size} bytes or more and the limit is {max_bytes}; send a compressed one",
            field="audio.data",
        )


def _role(role: Role | None, roles: Sequence[Role], field: str) -> Role:
    if role is None and len(roles) == 1:
        return roles[0]
    if role is None or role not in roles:
        wanted = ", ".join(role.value for role in roles) or "none: nothing is uploaded on this stream"
        raise InvalidRequest(f"role is {role.value if role else 'not set'}; it must be one of {wanted}", field=field)
    return role


def _by_role(digests: Sequence[Digest], roles: Sequence[Role]) -> dict[Role, Digest]:
    found: dict[Role, Digest] = {}
    for digest in digests:
        role = _role(digest.role, roles, "commit.digests.role")
        if role in found:
            raise InvalidRequest(f"the commit has two digests of the {role.value}", field="commit.digests")
        found[role] = digest
    if missing := [role.value for role in roles if role not in found]:
        raise InvalidRequest(
            f"the commit lacks the total_bytes of the {' and the '.join(missing)}", field="commit.digests"
        )
    return found


def _checked(data: bytearray, digest: Digest) -> bytes:
    if len(data) != digest.total_bytes:
        raise InvalidRequest(
            f"{len(data)} bytes arrived and the commit says {digest.total_bytes}; upload again",
            field="commit.digests.total_bytes",
        )
    if digest.sha256 and hashlib.sha256(data).digest() != digest.sha256:
        raise InvalidRequest(
            "the SHA-256 of the recording is not the one of the commit; upload again", field="commit.digests.sha256"
        )
    return bytes(data)
