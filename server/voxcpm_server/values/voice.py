"""The description of a voice, which replies contain and stores keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from voxcpm_grpc.abilities import AbilityName


class VoiceKind(Enum):
    """The kind of a voice. The value is the prefix of its ids."""

    PROMPT = "prm"
    REFERENCE = "ref"
    HIFI = "hifi"
    SPEAKER = "spk"  # built into the model

    @property
    def ability(self) -> AbilityName:
        """The ability that a model needs to speak with such a voice."""
        abilities: dict[VoiceKind, AbilityName] = {
            VoiceKind.PROMPT: "prompt",
            VoiceKind.REFERENCE: "reference",
            VoiceKind.HIFI: "hifi",
            VoiceKind.SPEAKER: "speaker",
        }
        return abilities[self]


@dataclass(frozen=True, slots=True)
class VoiceName:
    """A name of a voice, with the labels that were given with it."""

    name: str
    labels: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A voice without its content.

    fingerprint: the model that encoded it
    display_name: the name that is shown: the one given last, or the one that the voice was found by; empty for none
    labels: those of display_name
    other_names: the names beside display_name, the one given last first
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
    other_names: tuple[VoiceName, ...] = ()

    @property
    def names(self) -> tuple[VoiceName, ...]:
        """All names, the one that is shown first."""
        return (VoiceName(self.display_name, self.labels), *self.other_names) if self.display_name else ()

    def has_name(self, name: str) -> bool:
        """True if it has this name, in any case of its letters."""
        return any(_same(one.name, name) for one in self.names)

    def with_name(self, name: str, labels: dict[str, str] | None = None) -> Voice:
        """The voice with this name shown. It gets the name if it does not have it, and the labels unless they are None.

        A new name without labels has those of the name that was shown before.
        """
        held = next((one for one in self.names if _same(one.name, name)), VoiceName(name, self.labels))
        others = tuple(one for one in self.names if not _same(one.name, name))
        return replace(self, display_name=name, labels=held.labels if labels is None else labels, other_names=others)

    def renamed(self, name: str) -> Voice:
        """The voice with another name, and the same labels, in place of the one that is shown.

        An empty name removes that one with its labels; the labels of the last name stay.
        """
        if not name and self.other_names:
            return self.without_name(self.display_name)
        others = tuple(one for one in self.other_names if not _same(one.name, name))
        return replace(self, display_name=name, other_names=others)

    def without_name(self, name: str) -> Voice:
        """The voice without one of its names and the labels of that name."""
        first, *others = [one for one in self.names if not _same(one.name, name)] or [VoiceName("")]
        return replace(self, display_name=first.name, labels=first.labels, other_names=tuple(others))

    def with_names_of(self, other: Voice | None) -> Voice:
        """The voice with the names of another one beside its own."""
        return self if other is None else replace(self, other_names=(*self.other_names, *other.names))

    def unnamed(self) -> Voice:
        """The voice without names and labels."""
        return replace(self, display_name="", labels={}, other_names=())

    def shown_as(self, name: str) -> Voice:
        """The voice with this one of its names shown, in the spelling of the voice. Any other name changes nothing."""
        held = next((one.name for one in self.names if _same(one.name, name)), "")
        return self.with_name(held) if held else self

    @property
    def expires(self) -> float:
        """Seconds since the epoch."""
        return self.used + self.ttl


def without_members(voices: Iterable[Voice]) -> list[Voice]:
    """The voices that are not members of hifi voices among them."""
    voices = list(voices)
    members = {id for voice in voices for id in (voice.prompt_id, voice.reference_id)}
    return [voice for voice in voices if voice.id not in members]


def _same(one: str, other: str) -> bool:
    return one.casefold() == other.casefold()
