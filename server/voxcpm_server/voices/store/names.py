"""The names of a voice's objects. The names alone determine whether the voice exists.

Each time that a voice is stored, a new generation of it begins. Its objects are named `ID/GENERATION.NUMBER.KIND`; the
generation is the time of its creation and a random number. The latents and the owner are written first. The record
makes the voice exist. The mark of a deletion ends the generation for good, whatever other objects remain or arrive
late. A crash between two objects therefore leaves either an existing voice or none, and all servers that see the same
names agree. All times in this module are in microseconds.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

ID = re.compile(r"(?:prm|ref|hifi|spk)_[a-z2-7]{32}")
FORM = re.compile(
    rf"({ID.pattern})/(\d{{16}}-[0-9a-f]{{8}})\.(\d{{1,17}})\.(latents|owner|voice|used|deleted)(\.part\w*)?"
)
INDEX = "name-"  # the objects of the index of display names start so, see `name_index`
OWNER_DIGITS = 17
HOUR = 3_600_000_000
ABANDONED = HOUR  # writing a voice never takes that long
KEPT_DELETION = 24 * HOUR  # no server may still be writing to the voice after this time


class ObjectKind(Enum):
    """The kind of an object. It determines the meaning of the number in its name."""

    LATENTS = "latents"  # bytes
    OWNER = "owner"  # the number is the key of the caller that stored the voice
    RECORD = "voice"  # the number is the voice's time to live
    USE = "used"  # the number is the time of the use
    DELETION = "deleted"  # the number is the time of the deletion


KINDS = {kind.value: kind for kind in ObjectKind}


class Name(NamedTuple):
    """The name of an object. `unfinished` is the ending of an object that is still being written."""

    id: str
    generation: str
    number: int
    kind: ObjectKind
    unfinished: str = ""

    def __str__(self) -> str:
        return f"{self.id}/{self.generation}.{self.number}.{self.kind.value}{self.unfinished}"

    @property
    def written(self) -> int:
        """The earliest time at which the object can have been written."""
        began = created(self.generation)
        return max(began, self.number) if self.kind in (ObjectKind.USE, ObjectKind.DELETION) else began


@dataclass(slots=True)
class Generation:
    """One generation of a voice, as the names of its objects describe it."""

    id: str
    generation: str
    created: int
    used: int
    record: Name | None = None
    latents: Name | None = None
    owner: Name | None = None
    uses: list[Name] = field(default_factory=list)
    deletions: list[Name] = field(default_factory=list)
    unfinished: list[Name] = field(default_factory=list)

    def add(self, name: Name) -> None:
        """Add one of its objects."""
        if name.unfinished:
            self.unfinished.append(name)
        elif name.kind is ObjectKind.RECORD:
            self.record = name
        elif name.kind is ObjectKind.LATENTS:
            self.latents = name
        elif name.kind is ObjectKind.OWNER:
            self.owner = name
        elif name.kind is ObjectKind.USE:
            self.uses.append(name)
            self.used = max(self.used, name.number)
        else:
            self.deletions.append(name)

    @property
    def key(self) -> str:
        """Unique among the generations of all voices."""
        return f"{self.id}/{self.generation}"

    @property
    def ttl(self) -> int:
        return self.record.number if self.record else 0

    @property
    def remains(self) -> list[Name]:
        """All objects but the marks of its deletion."""
        return [name for name in (self.record, self.latents, self.owner, *self.uses) if name is not None]

    def is_live(self, now: int) -> bool:
        """True if it has a record, is not deleted and has not expired."""
        return self.record is not None and not self.deletions and now < self.used + self.record.number


@dataclass(frozen=True, slots=True)
class Survey:
    """The state of a store at one time.

    voices: the live generation of each voice, by id
    ended: generations that expired or were replaced and have no mark of a deletion yet
    garbage: objects that no server needs
    index: names of the objects in the index of display names
    """

    voices: dict[str, Generation]
    ended: list[Generation]
    garbage: list[Name]
    index: list[str]

    def owners(self) -> Counter[int]:
        """The number of voices of each owner."""
        return Counter(one.owner.number for one in self.voices.values() if one.owner is not None)


def owner_key(caller: str) -> int:
    """The number that stands for a caller: a digest, so that the store does not name callers."""
    digest = hashlib.blake2b(caller.encode(), digest_size=16, person=b"voice owner").digest()
    return int.from_bytes(digest, "big") % 10**OWNER_DIGITS


def new_generation(now: int) -> str:
    """A generation that begins now."""
    return f"{now:016d}-{secrets.token_hex(4)}"


def created(generation: str) -> int:
    """The time at which a generation began."""
    return int(generation[:16])


def parse(name: str) -> Name | None:
    """The name of a voice's object; None for any other name."""
    found = FORM.fullmatch(name)
    if found is None:
        return None
    id, generation, number, kind, unfinished = found.groups("")
    return Name(id, generation, int(number), KINDS[kind], unfinished)


def generations(names: Iterable[str]) -> dict[str, list[Generation]]:
    """The generations of each voice by id, the newest first."""
    found: dict[str, dict[str, Generation]] = defaultdict(dict)
    for text in names:
        if (name := parse(text)) is not None:
            group = found[name.id]
            if (one := group.get(name.generation)) is None:
                began = created(name.generation)
                one = group[name.generation] = Generation(name.id, name.generation, began, began)
            one.add(name)
    return {id: sorted(group.values(), key=lambda one: one.generation, reverse=True) for id, group in found.items()}


def live(generations: Iterable[Generation], now: int) -> Generation | None:
    """The live generation among those of one voice, newest first; None if the voice does not exist."""
    return next((one for one in generations if one.is_live(now)), None)


def survey(names: Iterable[str], now: int) -> Survey:
    """The state of a store with these names."""
    names = list(names)
    found = Survey({}, [], [], [name for name in names if name.startswith(INDEX)])
    for id, group in generations(names).items():
        voice = live(group, now)
        if voice is not None:
            found.voices[id] = voice
        for one in group:
            found.garbage.extend(_garbage(one, now))
            # A mere race does not count.
            replaced = voice is not None and voice is not one and one.created < now - ABANDONED
            if one.record is not None and not one.deletions and (replaced or not one.is_live(now)):
                found.ended.append(one)
    return found


def _garbage(one: Generation, now: int) -> Iterator[Name]:
    yield from (name for name in one.unfinished if name.written < now - ABANDONED)
    if one.deletions:
        yield from one.remains or (name for name in one.deletions if name.number < now - KEPT_DELETION)
    elif one.record is None:
        yield from (name for name in one.remains if name.written < now - ABANDONED)
    else:
        yield from (name for name in one.uses if name.number < one.used)
