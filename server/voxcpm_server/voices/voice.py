"""What a stored voice is: its description, its latents, and the id that follows from its content."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from voxcpm_grpc.errors import FailedPrecondition


class Kind(Enum):
    PROMPT = "prm"
    REFERENCE = "ref"
    HIFI = "hifi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A stored voice without its latents. Times in seconds, moments since the epoch; `ttl` counts from the last use."""

    id: str
    kind: Kind
    fingerprint: str
    transcript: str = ""
    display_name: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    ttl: float = 0.0
    created: float = 0.0
    used: float = 0.0
    prompt_seconds: float = 0.0
    reference_seconds: float = 0.0
    prompt_id: str = ""
    reference_id: str = ""

    @property
    def expires(self) -> float:
        return self.used + self.ttl


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredVoice:
    """A voice and its latents, float32 [patches, P, D]; a hifi voice holds its own copy of both."""

    voice: Voice
    prompt: np.ndarray | None = None
    reference: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        return sum(latents.nbytes for latents in (self.prompt, self.reference) if latents is not None)


class Damaged(FailedPrecondition):
    """What is stored is not what was once stored."""

    def __init__(self, id: str) -> None:
        super().__init__(f"voice {id} is damaged in the store; upload the recording again, or delete the voice")


def voice_id(kind: Kind, *content: str | memoryview) -> str:
    """The id of what makes a voice what it is; the same content gives the same id."""
    digest = hashlib.blake2b(digest_size=20, person=kind.value.encode())
    for part in content:
        data = memoryview(part.encode()) if isinstance(part, str) else part
        digest.update(data.nbytes.to_bytes(8, "little"))
        digest.update(data)
    return f"{kind.value}_{base64.b32encode(digest.digest()).decode().lower()}"
