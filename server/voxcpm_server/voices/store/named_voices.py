"""Finds voices by their names, and keeps each name to one voice of its owner and model.

A server that gives a voice a name enters it in the index, and then reads the index. Of two servers that do this at the
same time, at least one sees the entry of the other. It gives way to a voice that is stored already; of two entries
whose voices are still being written, the later one is withdrawn, and the earlier one waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from voxcpm_grpc.errors import AlreadyExists, Reason, Unavailable
from voxcpm_server.voices.store.content import Content
from voxcpm_server.voices.store.generations import SECOND, Generations
from voxcpm_server.voices.store.name_index import Entry, NameIndex
from voxcpm_server.voices.store.names import Generation, live
from voxcpm_server.voices.store.objects import RETRY_SECONDS
from voxcpm_server.voices.store.reader import dated
from voxcpm_server.voices.store.records import Record
from voxcpm_server.wire.voice import Voice, without_members

POLLS, POLL_SECONDS = 60, 0.05


class NamedVoices:
    """The voices of a store by name. `write_seconds`: a voice whose writing began longer ago is not being written."""

    def __init__(self, names: NameIndex, generations: Generations, content: Content, write_seconds: float) -> None:
        self._names = names
        self._generations = generations
        self._content = content
        self._write_microseconds = int(write_seconds * SECOND)

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
        records = await self._content.records(there)
        voices = [
            dated(record.voice, one).shown_as(name)
            for one in there
            if isinstance(record := records.get(one.key), Record) and record.voice.has_name(name)
        ]
        unfinished = [entry for entry in entries if self._is_unfinished(entry, groups[entry.id], now)]
        return sorted(voices, key=lambda voice: -voice.created), unfinished

    def _is_unfinished(self, entry: Entry, group: Sequence[Generation], now: int) -> bool:
        one = next((one for one in group if one.generation == entry.generation), None)
        if one is not None and (one.record is not None or one.deletions):
            return False
        return int(entry.generation[:16]) > now - self._write_microseconds


def busy(what: str) -> Unavailable:
    """The error for a change that other servers have disturbed for too long."""
    return Unavailable(f"{what} at the same time; retry", retry_after=RETRY_SECONDS, reason=Reason.VOICE_STORE_BUSY)


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
