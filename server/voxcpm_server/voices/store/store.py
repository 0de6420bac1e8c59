"""The voices that servers share: what a store holds of them, and copies of those that were used here lately.

The store is the truth and is asked for the names of a voice whenever it is used, so that what one server stores or
deletes is so for all at once. What names point at never changes: that alone is kept; see `content`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from copy import copy
from dataclasses import replace

from voxcpm_grpc.errors import Exhausted, FailedPrecondition, NotFound, Unavailable, VoxCPMError
from voxcpm_grpc.pool.background import cancel_and_wait, keep_running
from voxcpm_grpc.settings.schema import VoiceSettings
from voxcpm_server.voices.io_threads import IoThreads
from voxcpm_server.voices.store.content import Content
from voxcpm_server.voices.store.listing import Listing
from voxcpm_server.voices.store.names import (
    HOUR,
    ID,
    Generation,
    Name,
    Part,
    Survey,
    generations,
    living,
    new_generation,
    survey,
)
from voxcpm_server.voices.store.objects import RETRY_SECONDS, Objects
from voxcpm_server.voices.store.records import Record, damaged, encode
from voxcpm_server.voices.voice import Damaged, Kind, StoredVoice, Voice

log = logging.getLogger(__name__)

SECOND = 1_000_000  # names count microseconds
TOUCH = HOUR  # a use is recorded at most this often
THREADS = 8
FULL_RETRY_SECONDS = 60.0
ATTEMPTS = 3  # at a voice that is stored anew while it is read


class VoiceStore:
    """Belongs to an event loop, which it never blocks. Every method may raise Unavailable."""

    def __init__(
        self, objects: Objects, settings: VoiceSettings, fingerprint: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._objects = objects
        self._settings = settings
        self._fingerprint = fingerprint
        self._clock = clock
        self._threads = IoThreads(THREADS, "voxcpm-voices")
        self._content = Content(objects, self._threads, settings.cache_bytes)
        self._touching: set[str] = set()
        self._adding = asyncio.Lock()
        self._count: int | None = None  # of all voices, as of the last survey and what was done here since
        self._stored = 0  # by this store, ever
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> VoiceStore:
        """Begins to sweep from time to time."""
        self._sweeper = keep_running(
            self._sweep_forever, "sweeping the voice store", retry_seconds=self._settings.sweep_seconds
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait(self._sweeper)
        await self._content.close()
        self._threads.close(wait=False)  # a store that hangs would hang us too

    # ---- what callers want

    async def add(self, *wanted: StoredVoice, using: Collection[str] = ()) -> list[tuple[Voice, bool]]:
        """Store those voices that are not there already; returns what is stored and whether it was there.

        Returns when all are durable and every server sees them. Raises Exhausted, and stores none, when there is no
        room for all; NotFound if a voice that they are made `using` was deleted in the meantime.
        """
        async with self._patience(), self._adding:
            for id in using:
                await self._load(id)
            there: dict[str, Voice] = {}
            for stored in wanted:
                with suppress(NotFound, Damaged):
                    there[stored.voice.id] = (await self._load(stored.voice.id)).voice
            new = [await self._dated(stored) for stored in wanted if stored.voice.id not in there]
            if new:
                await self._make_room(len(new))
                await self._write(new)
            made = {stored.voice.id: stored.voice for stored in new}
            ids = [stored.voice.id for stored in wanted]
            return [(there[id], True) if id in there else (made[id], False) for id in ids]

    async def find(self, id: str) -> Voice:
        """The voice, whose life starts again. Raises NotFound and Damaged."""
        async with self._patience():
            for _ in range(ATTEMPTS):
                one = await self._living(id)
                match (await self._content.records([one])).get(one.key):
                    case Record(voice=voice):
                        return _dated(voice, one, await self._touch(one))
                    case VoxCPMError() as error:
                        raise copy(error)  # one that is kept would keep all who raised it
            raise damaged(id, "its record is missing")

    async def load(self, id: str) -> StoredVoice:
        """The voice with its latents, read-only, whose life starts again.

        Raises NotFound, Damaged, and FailedPrecondition for a voice of another model.
        """
        async with self._patience():
            return await self._load(id)

    async def delete(self, id: str, *, cascade: bool = False) -> None:
        """Delete a voice; with `cascade` also the members of a hifi voice that no other one uses. Raises NotFound.

        It is gone for all servers as soon as that is marked. When removing what it held then fails, try again.
        """
        async with self._patience():
            found = [one for one in await self._generations(id) if one.record or (one.deletions and one.remains)]
            if not found:
                raise _no_voice(id)
            members = await self._members(found) if cascade else set()
            await self._bury(found)
            if members:
                members -= await self._members((await self._survey()).voices.values())
            for member in members:
                await self._bury(await self._generations(member))

    async def page(
        self,
        *,
        kind: Kind | None = None,
        labels: dict[str, str] | None = None,
        size: int = 0,
        token: str = "",
        beside: Collection[Voice] = (),
    ) -> tuple[list[Voice], str]:
        """Voices newest first, and the token of the next page, "" on the last. Raises InvalidRequest.

        Those `beside` the store are listed after all others, in their order, and instead of stored ones of their ids.
        """
        listing = Listing(kind, labels or {}, size, token)
        others = {voice.id: voice for voice in beside}
        oldest = {id: Generation(id, "", made, made) for made, id in enumerate(reversed(others), 1)}
        async with self._patience():
            voices = ((await self._survey()).voices | oldest).values()
            for batch in await self._threads.run(listing.batches, voices):
                records = await self._content.records([one for one in batch if one.id not in others])
                for one in batch:
                    if one.id in others:
                        listing.offer(one, others[one.id])
                    elif isinstance(record := records.get(one.key), Record):
                        listing.offer(one, _dated(record.voice, one, one.used))
                if listing.full:
                    break
        return listing.page, listing.next_token

    async def sweep(self) -> int:
        """Remove what has expired or broke off; returns how many voices there are. Any server may, at any time."""
        stored = self._stored
        found = await self._survey()
        for one in found.ended:
            now = living(await self._generations(one.id), self._now())
            if now is None or now.key != one.key:  # else it was used just now
                log.info("voice id=%s expired or was stored anew", one.id)
                await self._bury([one])
        await self._threads.run(self._objects.remove, *map(str, found.rubbish))
        keys = {one.key for one in found.voices.values()}
        self._content.keep(keys)
        self._count = len(found.voices) + self._stored - stored  # rather twice than not at all
        return self._count

    # ---- reading

    async def _load(self, id: str) -> StoredVoice:
        for _ in range(ATTEMPTS):
            one = await self._living(id)
            stored = await self._content.voice(one)
            if stored is None:
                continue
            if stored.voice.fingerprint != self._fingerprint:
                raise FailedPrecondition(
                    f"voice {id} was made with model {stored.voice.fingerprint[:16]} and this server runs "
                    f"{self._fingerprint[:16]}; upload the recording again"
                )
            return replace(stored, voice=_dated(stored.voice, one, await self._touch(one)))
        raise damaged(id, "its record or its latents are missing")

    async def _generations(self, id: str) -> list[Generation]:
        if not ID.fullmatch(id):  # ids become names
            raise NotFound("there is no voice of that id; ids look like prm_..., ref_... or hifi_...", field="id")
        return generations(await self._threads.run(self._objects.names, id)).get(id, [])

    async def _living(self, id: str) -> Generation:
        one = living(await self._generations(id), self._now())
        if one is None:
            self._content.forget(id)
            raise _no_voice(id)
        return one

    async def _survey(self) -> Survey:
        return await self._threads.run(lambda: survey(self._objects.names(), self._now()))

    async def _members(self, voices: Collection[Generation]) -> set[str]:
        hifis = [one for one in voices if one.record is not None and one.id.startswith(Kind.HIFI.value)]
        records = (await self._content.records(hifis)).values()
        return {
            member
            for record in records
            if isinstance(record, Record)
            for member in (record.voice.prompt_id, record.voice.reference_id)
        }

    # ---- writing

    def _now(self) -> int:
        return int(self._clock() * SECOND)

    async def _dated(self, stored: StoredVoice) -> StoredVoice:
        """Made now, and after all that is there, which may be damaged and of a server whose clock is ahead."""
        known = await self._generations(stored.voice.id)
        made = max([self._now(), *(one.made + 1 for one in known)]) / SECOND
        ttl = stored.voice.ttl or self._settings.ttl_seconds
        return replace(stored, voice=replace(stored.voice, created=made, used=made, ttl=ttl))

    async def _make_room(self, count: int) -> None:
        limit = self._settings.max_voices
        if self._count is None or self._count + count > limit:
            self._count = await self.sweep()
        if self._count + count > limit:
            raise Exhausted(f"the store has room for {limit} voices; delete some", retry_after=FULL_RETRY_SECONDS)

    async def _write(self, new: list[StoredVoice]) -> None:
        """The latents of all, then the records that make them exist, members before what they are members of."""
        records: dict[Name, bytes] = {}
        writes = []
        for stored in new:
            record, latents = await self._threads.run(encode, stored)
            id, generation = stored.voice.id, new_generation(round(stored.voice.created * SECOND))
            records[Name(id, generation, round(stored.voice.ttl * SECOND), Part.RECORD)] = record
            writes.append((str(Name(id, generation, len(latents), Part.LATENTS)), latents))
        await asyncio.gather(*(self._threads.run(self._objects.write, *write) for write in writes))
        for (name, record), stored in zip(records.items(), new, strict=True):
            await self._threads.run(self._objects.write, str(name), record)
            self._content.put(f"{name.id}/{name.generation}", stored)
            self._count = (self._count or 0) + 1
            self._stored += 1

    async def _touch(self, one: Generation) -> int:
        """Record a use, unless one was recorded lately; returns when the voice was used last."""
        now, older = self._now(), one.uses
        if now - one.used <= min(TOUCH, one.ttl // 4):
            return one.used
        if one.key not in self._touching:
            self._touching.add(one.key)
            try:
                await self._mark(one, Part.USE, now)
                await self._threads.run(self._objects.remove, *map(str, older))
            except Unavailable:
                pass  # a store that is read-only, or lost since: the voice is still good
            finally:
                self._touching.discard(one.key)
        return now

    async def _mark(self, one: Generation, part: Part, now: int) -> None:
        name = Name(one.id, one.generation, now, part)
        await self._threads.run(self._objects.write, str(name), f"{part.value}\n".encode())

    async def _bury(self, ended: Collection[Generation]) -> None:
        """End the generations that exist, for good, and remove what they held."""
        for one in ended:
            if one.record is None and not one.deletions:
                continue  # somebody may be writing it
            if not one.deletions:
                if self._count and one.lives(self._now()):
                    self._count -= 1
                await self._mark(one, Part.DELETION, self._now())
            self._content.forget(one.id, one.key)
            await self._threads.run(self._objects.remove, *map(str, one.remains))

    async def _sweep_forever(self) -> None:
        while True:
            with suppress(VoxCPMError):  # the log says why
                await self.sweep()
            await asyncio.sleep(self._settings.sweep_seconds * random.uniform(0.8, 1.2))  # servers take turns

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        seconds = self._settings.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            log.warning("voice store: no answer within %g s", seconds)
            raise Unavailable(
                f"the voice store did not answer within {seconds:g} s; retry, or speak without a stored voice",
                retry_after=RETRY_SECONDS,
            ) from None


def _dated(voice: Voice, one: Generation, used: int) -> Voice:
    """The names know best when."""
    return replace(voice, created=one.made / SECOND, used=used / SECOND, ttl=one.ttl / SECOND)


def _no_voice(id: str) -> NotFound:
    return NotFound(f"there is no voice {id}; it was deleted, has expired or never existed", field="id")
