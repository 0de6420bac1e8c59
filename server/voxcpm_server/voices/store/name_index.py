"""The index of display names: for each name of a voice, an object in a folder of that name.

One listing of a folder finds all voices of a name, also those that other servers have just stored. A folder stands for
all names that differ in the case of letters only; it is named by a digest. The objects only guide the search: the
record of a voice has its names. An object is written before the record and removed after it, and the sweep repairs what
a crash or an older server has left.
"""

from __future__ import annotations

import asyncio
import base64
import difflib
import hashlib
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from voxcpm_server.voices.store.io_threads import IoThreads
from voxcpm_server.voices.store.names import ABANDONED, ID, INDEX, Generation
from voxcpm_server.voices.store.objects import UNFINISHED, Objects
from voxcpm_server.wire.voice import Voice

FORM = re.compile(rf"({INDEX}[a-z2-7]{{32}})/({ID.pattern})\.(\d{{16}}-[0-9a-f]{{8}})")
COMPARED_CHARS = 80  # of a misspelt name, which may be of any length
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
    return one is not None and int(one.generation[:16]) < now - ABANDONED


def _folder(name: str) -> str:
    digest = hashlib.blake2b(name.casefold().encode(), digest_size=20, person=b"voice name")
    return f"{INDEX}{base64.b32encode(digest.digest()).decode().lower()}"
