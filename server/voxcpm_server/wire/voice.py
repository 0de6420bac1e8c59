"""The description of a voice, which replies contain and stores keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class VoiceKind(Enum):
    """The kind of a voice. The value is the prefix of its ids."""

    PROMPT = "prm"
    REFERENCE = "ref"
    HIFI = "hifi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A voice without its latents.

    fingerprint: the model that encoded it
    ttl: seconds from the last use to the expiry; 0 for a preset, which never expires
    created, used: seconds since the epoch
    prompt_seconds, reference_seconds: length of the recordings
    prompt_id, reference_id: the members of a hifi voice
    principal: the owner; empty if the voice is everyone's
    lora: name of the LoRA adapter for turns that choose none; empty for the model alone
    """

    id: str
    kind: VoiceKind
    fingerprint: str
    transcript: str = ""
    display_name: str = ""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    ttl: float = 0.0
    created: float = 0.0
    used: float = 0.0
    prompt_seconds: float = 0.0
    reference_seconds: float = 0.0
    prompt_id: str = ""
    reference_id: str = ""
    principal: str = ""
    lora: str = ""

    @property
    def expires(self) -> float:
        """Seconds since the epoch."""
        return self.used + self.ttl
