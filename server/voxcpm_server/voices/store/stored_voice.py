"""A voice with its content, and the ids of voices, which depend on the content alone."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from voxcpm_grpc.errors import FailedPrecondition, Reason
from voxcpm_grpc.request import VoicePart
from voxcpm_server.wire.voice import Voice, VoiceKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredVoice:
    """A voice and its content. A hifi voice has its own copy of both parts."""

    voice: Voice
    prompt: VoicePart | None = None
    reference: VoicePart | None = None

    @property
    def nbytes(self) -> int:
        """Size of the content."""
        return sum(part.nbytes for part in (self.prompt, self.reference) if part is not None)


class Damaged(FailedPrecondition):
    """The stored data of a voice is not what was written."""

    def __init__(self, id: str) -> None:
        super().__init__(
            f"voice {id} is damaged in the store; upload the recording again, or delete the voice",
            reason=Reason.VOICE_DAMAGED,
            voice=id,
        )


def voice_id(kind: VoiceKind, *content: str | memoryview, principal: str = "") -> str:
    """The id of a principal's voice of this content. The same principal, kind and content always have the same id.

    The ids of different principals differ, so that none of them learns which recordings the others have.
    """
    digest = hashlib.blake2b(digest_size=20, person=kind.value.encode())
    for part in (*content, *([principal] if principal else [])):
        data = memoryview(part.encode()) if isinstance(part, str) else part
        digest.update(data.nbytes.to_bytes(8, "little"))
        digest.update(data)
    return f"{kind.value}_{base64.b32encode(digest.digest()).decode().lower()}"
