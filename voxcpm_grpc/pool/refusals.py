"""The requests that have ended two engines in a row: no engine takes them again for a while."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from time import monotonic

from voxcpm_grpc.errors import Aborted, Reason
from voxcpm_grpc.request import Arrays, Request, Role, VoicePart, content_of

REFUSED_SECONDS = 600.0  # the engines may have ended for another reason
MOST_REFUSED = 1024


class Refusals:
    """Remembers requests by their content."""

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._until)

    def __contains__(self, key: bytes) -> bool:
        if self._until.get(key, 0.0) > monotonic():
            return True
        self._until.pop(key, None)
        return False

    def add(self, key: bytes) -> None:
        self._until[key] = monotonic() + REFUSED_SECONDS
        self._until.move_to_end(key)
        if len(self._until) > MOST_REFUSED:
            self._until.popitem(last=False)


def refusal() -> Aborted:
    """The error of a request that is refused."""
    return Aborted(
        "two engines in a row ended while they worked on this request, so that no other one takes it; report it to "
        "the operator, and change its text or its voice",
        reason=Reason.REQUEST_ENDED_ENGINES,
    )


def key_of(request: Request) -> bytes:
    """The content of a request that decides what an engine does with it, whatever its seed."""
    voice, sampling = request.conditioning, request.sampling
    digest = hashlib.blake2b(digest_size=16)
    texts = request.text, request.open, request.style, request.language, content_of(voice.adapter)
    digest.update(repr((texts, replace(sampling, seed=0))).encode())
    for role, part in ((Role.PROMPT, voice.prompt), (Role.REFERENCE, voice.reference)):
        if part is not None:
            digest.update(part_key(role, part))
    return digest.digest()


def part_key(role: Role, part: VoicePart) -> bytes:
    return arrays_key(f"{role} {part.text}", part.content)


def arrays_key(name: str, arrays: Arrays) -> bytes:
    """The content of arrays, for what `name` says."""
    digest = hashlib.blake2b(name.encode(), digest_size=16)
    for key, array in sorted(arrays.items()):
        digest.update(f"{key} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.digest()
