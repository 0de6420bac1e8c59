"""Stores, changes and deletes voices. Other servers may do the same with the same voices at the same time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace

from voxcpm_grpc.errors import FailedPrecondition, NotFound, Reason
from voxcpm_server.values.voice import Voice, VoiceKind
from voxcpm_server.voices.store.content import Content
from voxcpm_server.voices.store.generations import SECOND, Generations, busy, no_voice
from voxcpm_server.voices.store.names import Generation, live
from voxcpm_server.voices.store.reader import VoiceReader
from voxcpm_server.voices.store.records import Damaged, Record, StoredVoice
from voxcpm_server.voices.store.writer import VoiceWriter, Write

MAX_NAMES = 50  # names of a voice
ATTEMPTS = 30
MAX_PAUSE_SECONDS = 0.1  # seconds before a write that another server has disturbed is made again
Change = Callable[[Voice], Voice | None]


class VoiceChanges:
    """Plans the writes of voices, and plans them anew if another server was faster."""

    def __init__(
        self,
        reader: VoiceReader,
        writer: VoiceWriter,
        generations: Generations,
        content: Content,
        *,
        ttl_seconds: float,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._generations = generations
        self._content = content
        self._ttl_seconds = ttl_seconds

    async def add(
        self,
        wanted: Sequence[StoredVoice],
        change: Callable[[Voice], Voice] | None,
        owner: int | None,
        check: Callable[[int], Awaitable[None]],
    ) -> list[tuple[Voice, bool]]:
        """Store voices that do not exist, and change the last one if it exists. Returns each, with True if it existed.

        owner: of the new voices
        check: called with the number of new voices before they are written
        """
        added: list[tuple[Voice, bool]] = []

        async def plan() -> list[Write]:
            added.clear()
            writes: list[Write] = []
            for stored in wanted:
                voice, existed, write = await self._plan(stored, change if stored is wanted[-1] else None, owner)
                added.append((voice, existed))
                writes += [write] if write is not None else []
            await check(sum(not existed for _, existed in added))
            return writes

        await self._write(plan)
        return added

    async def change(self, id: str, change: Change, *, own_models: bool = False) -> Voice | None:
        """Store a voice with another description and return that. If `change` gives None, do nothing.

        own_models: raise FailedPrecondition for a voice of a model that this server does not have
        """
        changed: list[Voice | None] = []

        async def plan() -> list[Write]:
            base, found = await self._reader.generation(id, own_models=own_models)
            voice = change(found.voice)
            write = None if voice is None or voice == found.voice else await self._rewrite(base, found, voice)
            changed[:] = [voice if write is None else write.stored.voice]
            return [] if write is None else [write]

        await self._write(plan)
        return changed[0]

    async def delete(self, id: str, name: str, *, cascade: bool, may_delete: Callable[[str], bool]) -> Sequence[str]:
        """Delete a voice, or only its name `name` if it has others, which are returned. See `VoiceStore.delete`."""
        try:
            voice = await self.change(id, lambda voice: _without(voice, [name])) if name else None
        except Damaged:
            voice = None
        if voice is None:
            await self._delete(id, cascade=cascade, may_delete=may_delete)
            return ()
        for member in (voice.prompt_id, voice.reference_id):
            if member and cascade:
                await self._delete_member(member, [name], may_delete, keep=True)
        return [one.name for one in voice.names]

    async def _delete(self, id: str, *, cascade: bool, may_delete: Callable[[str], bool]) -> None:
        found = [one for one in await self._generations.of(id) if one.record or (one.deletions and one.remains)]
        if not found:
            raise no_voice(id)
        hifis = await self._hifis(found) if cascade else []
        await self._end(id, found)
        if members := _members(hifis):
            members -= _members(await self._stored_hifis())
        names = [one.name for hifi in hifis for one in hifi.names]
        for member in members:
            await self._delete_member(member, names, may_delete, keep=False)

    async def _delete_member(
        self, id: str, names: Collection[str], may_delete: Callable[[str], bool], *, keep: bool
    ) -> None:
        """Remove the names of a hifi voice from a member, and the member if it has no other name and is not to be kept.

        may_delete: true for the principals whose members may be changed
        """

        def change(voice: Voice) -> Voice | None:
            if not may_delete(voice.principal):
                return voice
            return _without(voice, names) or (voice.unnamed() if keep else None)

        try:
            if await self.change(id, change) is not None:
                return
        except NotFound:
            return
        except Damaged:
            if keep:
                return
        await self._end(id, await self._generations.of(id))

    async def _end(self, id: str, found: Sequence[Generation]) -> None:
        """End a voice of these generations.

        Another server that gave the voice a name meanwhile has ended them itself, in favour of a new one.
        """
        await self._writer.end(found)
        for _ in range(ATTEMPTS):
            new = live(await self._generations.of(id), self._generations.now())
            if new is None:
                return
            await self._writer.end([new])

    async def _stored_hifis(self) -> Collection[Voice]:
        """All hifi voices, those that other servers change meanwhile among them."""
        stored = (await self._generations.survey()).voices.values()
        return (await self._reader.described([one for one in stored if _is_hifi(one)])).values()

    async def _hifis(self, generations: Iterable[Generation]) -> list[Voice]:
        """The hifi voices among these generations, some of which may have ended."""
        hifis = [one for one in generations if one.record is not None and _is_hifi(one)]
        records = (await self._content.records(hifis)).values()
        return [record.voice for record in records if isinstance(record, Record)]

    async def _plan(
        self, stored: StoredVoice, change: Callable[[Voice], Voice] | None, owner: int | None
    ) -> tuple[Voice, bool, Write | None]:
        """A voice as it will be stored, True if it exists already, and the write that this needs."""
        try:
            base, found = await self._reader.generation(stored.voice.id, own_models=True)
        except NotFound:
            base = found = None
        except Damaged:
            base, found = live(await self._generations.of(stored.voice.id), self._generations.now()), None
        if base is None or found is None:
            write = Write(await self._created_now(stored), base, owner, stored.voice.display_name)
            return write.stored.voice, False, write
        changed = found.voice if change is None else change(found.voice)
        if changed == found.voice:
            return changed, True, None
        write = await self._rewrite(base, found, changed)
        return write.stored.voice, True, write

    async def _rewrite(self, base: Generation, found: StoredVoice, changed: Voice) -> Write:
        """The write of a voice with another description."""
        if len(changed.names) > MAX_NAMES:
            raise FailedPrecondition(
                f"voice {changed.id} has {len(found.voice.names)} names and the limit is {MAX_NAMES}; use one of them, "
                "or delete some",
                reason=Reason.TOO_MANY_NAMES,
                voice=changed.id,
                limit=MAX_NAMES,
            )
        new = [one.name for one in changed.names if not found.voice.has_name(one.name)]
        stored = await self._created_now(replace(found, voice=changed))
        return Write(stored, base, base.owner and base.owner.number, new[0] if new else "")

    async def _created_now(self, stored: StoredVoice) -> StoredVoice:
        """The voice as created now, but after its other generations, which a server with a fast clock may have made."""
        known = await self._generations.of(stored.voice.id)
        created = max([self._generations.now(), *(one.created + 1 for one in known)]) / SECOND
        ttl = stored.voice.ttl or self._ttl_seconds
        return replace(stored, voice=replace(stored.voice, created=created, used=created, ttl=ttl))

    async def _write(self, plan: Callable[[], Awaitable[Sequence[Write]]]) -> None:
        """Write what is planned, and plan it again as long as other servers change the same voices."""
        for _ in range(ATTEMPTS):
            writes = await plan()
            if not writes or await self._writer.write(writes):
                return
            await asyncio.sleep(random.uniform(0, MAX_PAUSE_SECONDS))
        raise busy("other servers change this voice, or take its name,")


def _without(voice: Voice, names: Collection[str]) -> Voice | None:
    """The voice without these names; None if it has no other name."""
    for name in names:
        if voice.has_name(name):
            voice = voice.without_name(name)
    return voice if voice.names else None


def _is_hifi(one: Generation) -> bool:
    return one.id.startswith(VoiceKind.HIFI.value)


def _members(hifis: Iterable[Voice]) -> set[str]:
    return {member for hifi in hifis for member in (hifi.prompt_id, hifi.reference_id)}
