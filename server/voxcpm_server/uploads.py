"""Recordings that arrive in parts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_server.inputs import Commit, Digest, Part, Role, UploadConfig, UploadInput
from voxcpm_server.threads import Threads


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
    threads: Threads,
) -> dict[Role, bytes]:
    """Every announced recording, complete and as its digest says. Raises InvalidRequest."""
    parts: dict[Role, list[bytes]] = {role: [] for role in roles}
    sizes = dict.fromkeys(roles, 0)
    while True:
        match await next_message(messages, idle_seconds):
            case Part(data, offset, role):
                role = _role(role, roles, "audio.role")
                _check_part(len(data), offset, sizes[role], max_bytes)
                parts[role].append(data)
                sizes[role] += len(data)
            case Commit(digests):
                by_role = _by_role(digests, roles)
                return {role: await threads.run(_join, parts[role], by_role[role]) for role in roles}
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


def _join(parts: list[bytes], digest: Digest) -> bytes:
    data = b"".join(parts)
    if len(data) != digest.total_bytes:
        raise InvalidRequest(
            f"{len(data)} bytes arrived and the commit says {digest.total_bytes}; upload again",
            field="commit.digests.total_bytes",
        )
    if digest.sha256 and hashlib.sha256(data).digest() != digest.sha256:
        raise InvalidRequest(
            "the SHA-256 of the recording is not the one of the commit; upload again", field="commit.digests.sha256"
        )
    return data
