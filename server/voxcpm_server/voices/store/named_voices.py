"""Finds voices by their names, and keeps each name to one voice of its owner and model.

A server that gives a voice a name enters it in the index, and then reads the index. Of two servers that do this at the
same time, at least one sees the entry of the other. It gives way to a voice that is stored already; of two entries
whose voices are still being written, the later one is withdrawn, and the earlier one waits for that."""

from __future__ import annotations

import asyncio
import base64
import difflib
import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from voxcpm_grpc.aio.threads import IoThreads
from voxcpm_grpc.errors import AlreadyExists, Reason
from voxcpm_server.values.voice import Voice, without_members
from voxcpm_server.voices.store.generations import Generations, busy
from voxcpm_server.voices.store.names import ABANDONED, ID, INDEX, Generation, created, live
from voxcpm_server.voices.store.objects import UNFINISHED, Objects
from voxcpm_server.voices.store.reader import VoiceReader

FORM = re.compile(rf"({INDEX}[a-z2-7]{{32}})/({ID.pattern})\.(\d{{16}}-[0-9a-f]{{8}})")
COMPARED_CHARS = 80  # characters of a misspelt name, which may be of any length
MARK = b"name\n"  # objects must not be empty


class Entry(NamedTuple):
    """The object of one generation of a voice."""

    folder: str
    id: str
    generation: str

    def __str__(self) -> str:
        return f"{self.folder}/{self.id}.{self.generation}"


class KnownName(NamedTuple):
    """A display name, and the principal that owns its voice."""

    name: str
    principal: str


def entries(voice: Voice, generation: str) -> list[Entry]:
    """The entries of a voice, one for each of its names."""
    return [Entry(_folder(one.name), voice.id, generation) for one in voice.names]


def parse(name: str) -> Entry | None:
    """The entry of this name; None for any other object."""
    found = FORM.fullmatch(name)
    return Entry(*found.groups()) if found else None


class NameIndex:
    """Reads and writes the index. `known` has the display names that this server has seen, by id."""

    def __init__(self, objects: Objects, threads: IoThreads) -> None:
        self._objects = objects
        self._threads = threads
        self.known: dict[str, list[KnownName]] = {}

    async def listed(self, name: str) -> list[Entry]:
        """The entries of a name, in any case of its letters: of voices that have it, or are getting or losing it."""
        found = await self._threads.run(self._objects.names, _folder(name))
        return [one for text in found if (one := parse(text)) is not None]

    async def put(self, voice: Voice, generation: str) -> None:
        """Enter a generation of a voice under each of its names."""
        self.known[voice.id] = _known(voice)
        names = map(str, entries(voice, generation))
        await asyncio.gather(*(self._threads.run(self._objects.write, name, MARK) for name in names))

    async def remove(self, voice: Voice, generation: str) -> None:
        """Remove the entries of a generation that has ended, or is not written."""
        await self._threads.run(self._objects.remove, *map(str, entries(voice, generation)))

    async def repair(self, there: Collection[str], voices: Iterable[tuple[Generation, Voice]], now: int) -> None:
        """Make the index match the live voices.

        there: names of all objects in the index
        now: in microseconds since the epoch
        """
        known = {voice.id: (one.generation, voice) for one, voice in voices}
        named = {str(entry) for generation, voice in known.values() for entry in entries(voice, generation)}
        for name in named.difference(there):
            await self._threads.run(self._objects.write, name, MARK)
        stale = [name for name in there if name not in named and _is_abandoned(name, now)]
        await self._threads.run(self._objects.remove, *stale)
        self.known = {id: _known(voice) for id, (_, voice) in known.items()}


def nearest(name: str, names: Iterable[str]) -> str:
    """The most similar of some names, whatever the case of letters; "" if none is similar. Blocks for milliseconds."""
    folded = {known.casefold(): known for known in names}
    near = difflib.get_close_matches(name[:COMPARED_CHARS].casefold(), folded, n=1)
    return folded[near[0]] if near else ""


def _known(voice: Voice) -> list[KnownName]:
    return [KnownName(one.name, voice.principal) for one in voice.names]


def _is_abandoned(name: str, now: int) -> bool:
    """True if no server can still be writing the generation of this entry, or the entry itself."""
    one = parse(name.partition(UNFINISHED)[0])
    return one is not None and created(one.generation) < now - ABANDONED


def _folder(name: str) -> str:
    digest = hashlib.blake2b(name.casefold().encode(), digest_size=20, person=b"voice name")
    return f"{INDEX}{base64.b32encode(digest.digest()).decode().lower()}"


POLLS, POLL_SECONDS = 60, 0.05


class NamedVoices:
    """The voices of a store by name."""

    def __init__(self, names: NameIndex, generations: Generations, reader: VoiceReader) -> None:
        self._names = names
        self._generations = generations
        self._reader = reader

    async def of(self, name: str) -> list[Voice]:
        """The voices with a name, in any case of its letters, the newest first; each shows this name.

        One listing finds them, and only their own records are read. Damaged ones are left out.
        """
        voices, _ = await self._look(name)
        return voices

    async def claim(self, name: str, voices: Sequence[Voice], since: str) -> bool:
        """True if voices, which are in the index already, may have a name; False to withdraw them and try again.

        voices: those of an upload: one voice, or a hifi voice and its members
        since: their first generation

        Raises AlreadyExists if another voice of the same owner and model has the name, and Unavailable if another
        server does not finish to store such a voice.
        """
        ids = {voice.id for voice in voices}
        for _ in range(POLLS):
            found, unfinished = await self._look(name)
            others = [voice for voice in found if voice.id not in ids and _share_names(voice, voices[0])]
            heads = without_members([*others, *voices])
            if len(heads) > 1 and (taken := [voice for voice in heads if voice.id not in ids]):
                raise _taken(name, taken[0])
            rivals = [entry.generation for entry in unfinished if entry.id not in ids]
            if not rivals:
                return True
            if min(rivals) < since:
                return False
            await asyncio.sleep(POLL_SECONDS)
        raise busy(f"another server stores a voice that is named {name!r}")

    async def _look(self, name: str) -> tuple[list[Voice], list[Entry]]:
        """The voices with a name, and the entries of those that are still being written."""
        entries = await self._names.listed(name)
        ids = list({entry.id for entry in entries})
        groups = dict(zip(ids, await asyncio.gather(*map(self._generations.of, ids)), strict=True))
        now = self._generations.now()
        there = [one for group in groups.values() if (one := live(group, now)) is not None]
        described = (await self._reader.described(there)).values()
        voices = [voice.shown_as(name) for voice in described if voice.has_name(name)]
        unfinished = [entry for entry in entries if self._is_unfinished(entry, groups[entry.id])]
        return sorted(voices, key=lambda voice: -voice.created), unfinished

    def _is_unfinished(self, entry: Entry, group: Sequence[Generation]) -> bool:
        one = next((one for one in group if one.generation == entry.generation), None)
        if one is not None and (one.record is not None or one.deletions):
            return False
        return self._generations.is_recent(entry.generation)


def _share_names(one: Voice, other: Voice) -> bool:
    return (one.principal, one.fingerprint) == (other.principal, other.fingerprint)


def _taken(name: str, voice: Voice) -> AlreadyExists:
    return AlreadyExists(
        f"the name {name!r} belongs to another recording, the {voice.kind.name.lower()} {voice.id}; choose another "
        "name, or rename or delete that voice",
        reason=Reason.NAME_TAKEN,
        name=name,
        voice=voice.id,
    )
