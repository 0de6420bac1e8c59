"""The names of a voice's objects, which alone say what became of it.

Every time that a voice is stored is a generation of it: `ID/GENERATION.NUMBER.PART`, a generation being the moment it
was made and a random number. Its latents are written first, its record makes it exist, the mark of a deletion ends it
for good, whatever else is left of it or comes late. So a crash between any two objects leaves a voice that exists or
one that does not, and servers that look at the same names agree. All times here are in microseconds.
"""

from __future__ import annotations

import re
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

ID = re.compile(r"(?:prm|ref|hifi)_[a-z2-7]{32}")
FORM = re.compile(rf"({ID.pattern})/(\d{{16}}-[0-9a-f]{{8}})\.(\d{{1,17}})\.(latents|voice|used|deleted)(\.part\w*)?")
HOUR = 3_600_000_000
ABANDONED = HOUR  # nobody takes that long to write a voice
REMEMBERED = 24 * HOUR  # a deletion outlives what other servers may still write of the voice


class Part(Enum):
    """What an object is, and what its number says."""

    LATENTS = "latents"  # the bytes it has
    RECORD = "voice"  # the voice's time to live
    USE = "used"  # when the voice was used
    DELETION = "deleted"  # when it was deleted


PARTS = {part.value: part for part in Part}


class Name(NamedTuple):
    id: str
    generation: str
    number: int
    part: Part
    unfinished: str = ""

    def __str__(self) -> str:
        return f"{self.id}/{self.generation}.{self.number}.{self.part.value}{self.unfinished}"

    @property
    def written(self) -> int:
        """When, at the earliest."""
        made = _made(self.generation)
        return max(made, self.number) if self.part in (Part.USE, Part.DELETION) else made


@dataclass(slots=True)
class Generation:
    """One storing of a voice, as the names of its objects tell it."""

    id: str
    generation: str
    made: int
    used: int
    record: Name | None = None
    latents: Name | None = None
    uses: list[Name] = field(default_factory=list)
    deletions: list[Name] = field(default_factory=list)
    unfinished: list[Name] = field(default_factory=list)

    def note(self, name: Name) -> None:
        if name.unfinished:
            self.unfinished.append(name)
        elif name.part is Part.RECORD:
            self.record = name
        elif name.part is Part.LATENTS:
            self.latents = name
        elif name.part is Part.USE:
            self.uses.append(name)
            self.used = max(self.used, name.number)
        else:
            self.deletions.append(name)

    @property
    def key(self) -> str:
        """What tells it from all others."""
        return f"{self.id}/{self.generation}"

    @property
    def ttl(self) -> int:
        return self.record.number if self.record else 0

    @property
    def remains(self) -> list[Name]:
        """All but the mark of its deletion."""
        return [name for name in (self.record, self.latents, *self.uses) if name is not None]

    def lives(self, now: int) -> bool:
        return self.record is not None and not self.deletions and now < self.used + self.record.number


@dataclass(frozen=True, slots=True)
class Survey:
    """A store at a moment: its voices, what ended and is not marked so yet, and what nobody needs."""

    voices: dict[str, Generation]
    ended: list[Generation]
    rubbish: list[Name]


def new_generation(now: int) -> str:
    return f"{now:016d}-{secrets.token_hex(4)}"


def parse(name: str) -> Name | None:
    """None for what is no object of a voice."""
    found = FORM.fullmatch(name)
    if found is None:
        return None
    id, generation, number, part, unfinished = found.groups("")
    return Name(id, generation, int(number), PARTS[part], unfinished)


def generations(names: Iterable[str]) -> dict[str, list[Generation]]:
    """By id, the newest first."""
    found: dict[str, dict[str, Generation]] = defaultdict(dict)
    for text in names:
        if (name := parse(text)) is not None:
            group = found[name.id]
            if (one := group.get(name.generation)) is None:
                made = _made(name.generation)
                one = group[name.generation] = Generation(name.id, name.generation, made, made)
            one.note(name)
    return {id: sorted(group.values(), key=lambda one: one.generation, reverse=True) for id, group in found.items()}


def living(generations: Iterable[Generation], now: int) -> Generation | None:
    """Of the generations of one voice, the one that is the voice now."""
    return next((one for one in generations if one.lives(now)), None)


def survey(names: Iterable[str], now: int) -> Survey:
    found = Survey({}, [], [])
    for id, group in generations(names).items():
        voice = living(group, now)
        if voice is not None:
            found.voices[id] = voice
        for one in group:
            found.rubbish.extend(_rubbish(one, now))
            replaced = voice is not None and voice is not one and one.made < now - ABANDONED  # not by a mere race
            if one.record is not None and not one.deletions and (replaced or not one.lives(now)):
                found.ended.append(one)
    return found


def _rubbish(one: Generation, now: int) -> Iterator[Name]:
    yield from (name for name in one.unfinished if name.written < now - ABANDONED)
    if one.deletions:
        yield from one.remains or (name for name in one.deletions if name.number < now - REMEMBERED)
    elif one.record is None:
        yield from (name for name in one.remains if name.written < now - ABANDONED)
    else:
        yield from (name for name in one.uses if name.number < one.used)


def _made(generation: str) -> int:
    return int(generation[:16])
