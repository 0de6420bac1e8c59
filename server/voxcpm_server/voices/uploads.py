"""Uploads: recordings that arrive in parts, and the memory budget that they share."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from voxcpm_grpc.aio.threads import IoThreads
from voxcpm_grpc.errors import Exhausted, InvalidRequest, Reason, VoxCPMError
from voxcpm_grpc.request import Role
from voxcpm_server.values.inputs import AudioPart, Audition, Commit, Digest, UploadConfig, UploadInput

BUDGET_RETRY_SECONDS = 2.0
END_SECONDS = 0.25  # clients end their side of the stream right after the commit, if they do
Take = Callable[[int, str], None]


class UploadBudget:
    """The bytes of recordings that may be in memory at once, of all callers together and of each."""

    def __init__(self, limit: int, per_caller: float = math.inf) -> None:
        self._limit = limit
        self._per_caller = per_caller
        self._held = 0
        self._held_by: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Bytes taken now."""
        return self._held

    @contextmanager
    def account(self, caller: str) -> Iterator[Take]:
        """Gives a function that takes bytes for a request field; the end of the block returns all of them.

        The function raises Exhausted if other uploads hold too much, and InvalidRequest if the bytes would not fit even
        alone. It never waits, because two uploads that wait would block each other.
        """
        mine = 0
        most = min(self._limit, self._per_caller)

        def take(size: int, field: str) -> None:
            nonlocal mine
            if mine + size > most:
                raise InvalidRequest(
                    f"the recordings of this stream have {mine + size} bytes or more and the limit is {most}; "
                    "send compressed recordings",
                    field=field,
                )
            if self._held + size > self._limit:
                raise Exhausted(
                    f"{size} bytes more do not fit: uploads hold {self._held} bytes and the limit is {self._limit}; "
                    "retry later",
                    retry_after=BUDGET_RETRY_SECONDS,
                    reason=Reason.UPLOADS_TOO_LARGE,
                    held_bytes=self._held,
                    limit_bytes=self._limit,
                )
            if self._held_by[caller] + size > self._per_caller:
                raise Exhausted(
                    f"{size} bytes more do not fit: uploads of this caller hold {self._held_by[caller]} bytes and the "
                    f"limit is {self._per_caller}; finish one of them, or retry later",
                    retry_after=BUDGET_RETRY_SECONDS,
                    reason=Reason.UPLOADS_OF_CALLER_TOO_LARGE,
                    held_bytes=self._held_by[caller],
                    limit_bytes=self._per_caller,
                )
            mine += size
            self._held += size
            self._held_by[caller] += size

        try:
            yield take
        finally:
            self._held -= mine
            self._held_by[caller] -= mine
            if not self._held_by[caller]:
                del self._held_by[caller]


@asynccontextmanager
async def reception(seconds: float) -> AsyncIterator[None]:
    """Limit the time in which an upload arrives to that of the block. Raises InvalidRequest."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise InvalidRequest(
            f"the upload took longer than {seconds:g} s; send a compressed recording, or use a faster connection",
            field="commit",
        ) from None


@asynccontextmanager
async def nothing_after_commit(messages: AsyncIterator[UploadInput]) -> AsyncIterator[None]:
    """Refuse a message that follows the commit while the block runs, which is cancelled. Raises InvalidRequest.

    The block begins when the client has ended its side of the stream, or after a moment.
    """
    try:
        async with asyncio.TaskGroup() as group:
            more = group.create_task(_refuse_more(messages))
            await asyncio.wait({more}, timeout=END_SECONDS)
            yield
            more.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _refuse_more(messages: AsyncIterator[UploadInput]) -> None:
    try:
        message = await anext(messages, None)
    except VoxCPMError:
        raise
    except Exception:  # the connection is lost, and gRPC cancels the RPC
        return
    if isinstance(message, Audition):
        raise InvalidRequest(
            "an audition arrived and the config announces none; set preview.auditions in the config", field="audition"
        )
    if message is not None:
        raise after_commit(message, "send the commit last")


def after_commit(message: UploadInput, remedy: str) -> InvalidRequest:
    """The error for a message that must not follow the commit."""
    name = {AudioPart: "audio", UploadConfig: "config", Commit: "commit"}[type(message)]
    return InvalidRequest(f"{name} arrived after the commit; {remedy}", field=name)


async def next_message(messages: AsyncIterator[UploadInput], idle_seconds: float, awaited: str) -> UploadInput:
    """The next message. Raises InvalidRequest if none arrives in time, with the field `awaited`, or the stream ends.

    The end of a stream does not finish an upload, because a broken connection looks the same.
    """
    try:
        async with asyncio.timeout(idle_seconds):
            return await anext(messages)
    except TimeoutError:
        raise InvalidRequest(
            f"no message arrived for {idle_seconds:g} s during the upload; send parts without pauses, then commit",
            field=awaited,
        ) from None
    except StopAsyncIteration:
        raise InvalidRequest(
            "the upload ended without a commit and was discarded; send a commit last", field="commit"
        ) from None


async def read_config(messages: AsyncIterator[UploadInput], idle_seconds: float) -> UploadConfig:
    """The config of an upload, which is its first message. Raises InvalidRequest."""
    config = await next_message(messages, idle_seconds, "config")
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
    """Receive the recordings of these roles and check them against their digests.

    Calls `take` for the bytes of each part before it keeps them. Raises InvalidRequest, and the errors of `take`.
    """
    arrived = {role: bytearray() for role in roles}  # a list of small parts would take far more memory
    while True:
        match await next_message(messages, idle_seconds, "commit"):
            case AudioPart(data, offset, role):
                role = _role(role, roles, "audio.role")
                _check_part(len(data), offset, len(arrived[role]), max_bytes)
                take(len(data), "audio.data")
                arrived[role] += data
            case Commit(digests):
                by_role = _by_role(digests, roles)
                return {role: await threads.run(_checked, arrived.pop(role), by_role[role]) for role in roles}
            case Audition():
                raise InvalidRequest(
                    "an audition arrived before the commit; the voice does not exist yet, so send auditions after the "
                    "commit",
                    field="audition",
                )
            case UploadConfig():
                raise InvalidRequest("config was sent twice; send it once, as the first message", field="config")


def _check_part(size: int, offset: int, expected: int, max_bytes: int) -> None:
    if offset != expected:
        raise InvalidRequest(
            f"a part begins at byte {offset} and the next byte is {expected}; send the parts in order, without gaps",
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
        wanted = ", ".join(role.value for role in roles) or "none, because this stream uploads no recording"
        raise InvalidRequest(f"role is {role.value if role else 'not set'}; it must be one of {wanted}", field=field)
    return role


def _by_role(digests: Sequence[Digest], roles: Sequence[Role]) -> dict[Role, Digest]:
    found: dict[Role, Digest] = {}
    for digest in digests:
        role = _role(digest.role, roles, "commit.digests.role")
        if role in found:
            raise InvalidRequest(f"the commit has two digests of the {role.value}; send one", field="commit.digests")
        found[role] = digest
    if missing := [role.value for role in roles if role not in found]:
        raise InvalidRequest(
            f"the commit has no digest of the {' and the '.join(missing)}; add total_bytes of each",
            field="commit.digests",
        )
    return found


def _checked(data: bytearray, digest: Digest) -> bytes:
    if len(data) != digest.total_bytes:
        raise InvalidRequest(
            f"{len(data)} bytes arrived and the commit has total_bytes {digest.total_bytes}; upload again",
            field="commit.digests.total_bytes",
        )
    if digest.sha256 and hashlib.sha256(data).digest() != digest.sha256:
        raise InvalidRequest(
            "the SHA-256 of the recording differs from the commit's; upload again", field="commit.digests.sha256"
        )
    return bytes(data)
