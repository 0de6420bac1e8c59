"""Writes voices to a store that other servers write to at the same time.

A write adds a generation on top of the newest one that it knows, its base, and then looks again. If another server has
added one meanwhile, or has deleted the base, the write is withdrawn, to be made again on top of what is there now. It
is also withdrawn beside an older generation that another server may have written just now: the base may then be a write
that is about to be withdrawn, and lacks what the older one has. So no change of a voice is lost, and no server waits
for a lock.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from voxcpm_grpc.aio.threads import IoThreads
from voxcpm_grpc.errors import AlreadyExists, Unavailable
from voxcpm_server.voices.store.content import Content
from voxcpm_server.voices.store.generations import SECOND, Generations
from voxcpm_server.voices.store.named_voices import NamedVoices, NameIndex
from voxcpm_server.voices.store.names import Generation, Name, ObjectKind, new_generation
from voxcpm_server.voices.store.objects import Objects
from voxcpm_server.voices.store.records import Record, StoredVoice, encode
from voxcpm_server.voices.store.room import Room

OWNER_MARK = b"owner\n"  # objects must not be empty


@dataclass(frozen=True, slots=True)
class Write:
    """A new generation of a voice.

    base: the generation that it replaces; None for a new voice
    owner: the number of the caller that stored the voice first; None for none
    new_name: the name that the voice has not had before; empty for none
    """

    stored: StoredVoice
    base: Generation | None
    owner: int | None
    new_name: str
    generation: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "generation", new_generation(round(self.stored.voice.created * SECOND)))


class VoiceWriter:
    """Writes and ends generations, with their entries in the index of names."""

    def __init__(
        self,
        objects: Objects,
        threads: IoThreads,
        content: Content,
        generations: Generations,
        names: NameIndex,
        named: NamedVoices,
        room: Room,
    ) -> None:
        self._objects = objects
        self._threads = threads
        self._content = content
        self._generations = generations
        self._names = names
        self._named = named
        self._room = room

    async def write(self, writes: Sequence[Write]) -> bool:
        """Write generations, the members of a hifi voice before it. Raises AlreadyExists for a name of another voice.

        Returns False if another server was faster with one of them; then plan them again.
        """
        for one in writes:
            await self._names.put(one.stored.voice, one.generation)
        if not await self._claim_names(writes):
            return False
        await self._write(writes)
        return all([await self._settle(one) for one in writes])

    async def end(self, generations: Collection[Generation]) -> None:
        """End generations, and remove their objects and their entries in the index."""
        for one in generations:
            record = None if one.record is None else (await self._content.records([one])).get(one.key)
            if await self._generations.end(one):
                self._room.remove(one)
            if isinstance(record, Record):  # otherwise the sweep removes the entries
                await self._names.remove(record.voice, one.generation)

    async def _claim_names(self, writes: Sequence[Write]) -> bool:
        claims: dict[str, list[Write]] = defaultdict(list)
        for one in writes:
            if one.new_name:
                claims[one.new_name.casefold()].append(one)
        try:
            claimed = all([await self._claim(group) for group in claims.values()])
        except (AlreadyExists, Unavailable):
            await self._withdraw(writes)
            raise
        if not claimed:
            await self._withdraw(writes)
        return claimed

    async def _claim(self, group: Sequence[Write]) -> bool:
        voices = [one.stored.voice for one in group]
        return await self._named.claim(group[0].new_name, voices, min(one.generation for one in group))

    async def _withdraw(self, writes: Sequence[Write]) -> None:
        for one in writes:
            await self._names.remove(one.stored.voice, one.generation)

    async def _write(self, writes: Sequence[Write]) -> None:
        """Write all content, then the records, which make the voices exist."""
        records, objects = [], []
        for one in writes:
            voice = one.stored.voice
            record, content = await self._threads.run(encode, one.stored)
            records.append((Name(voice.id, one.generation, round(voice.ttl * SECOND), ObjectKind.RECORD), record))
            objects.append((Name(voice.id, one.generation, len(content), ObjectKind.LATENTS), content))
            if one.owner is not None:
                objects.append((Name(voice.id, one.generation, one.owner, ObjectKind.OWNER), OWNER_MARK))
        await asyncio.gather(*(self._threads.run(self._objects.write, str(name), data) for name, data in objects))
        for one, (name, record) in zip(writes, records, strict=True):
            await self._threads.run(self._objects.write, str(name), record)
            self._content.put(f"{name.id}/{name.generation}", one.stored)
            self._room.add(one.owner)

    async def _settle(self, one: Write) -> bool:
        """End what a generation replaces; or the generation itself, if another server has changed the voice too."""
        found = await self._generations.of(one.stored.voice.id)
        there = {found.generation: found for found in found if found.record and not found.deletions}
        mine = there.pop(one.generation, None)
        if mine is None:
            return False
        base = one.base.generation if one.base else ""
        rivals = [found for found in there.values() if found.generation != base and self._is_rival(found, base)]
        if rivals or (base and base not in there):
            await self.end([mine])
            return False
        await self.end(there.values())
        return True

    def _is_rival(self, found: Generation, base: str) -> bool:
        """True if a generation beside the base may have what that lacks; others are remains of a crash."""
        is_new = found.generation > base or self._generations.is_recent(found.generation)
        return is_new and found.is_live(self._generations.now())
