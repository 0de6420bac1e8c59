"""The voices that servers share.

The names of objects are read from the store at every use of a voice, so all servers see at once when one of them stores
or deletes a voice. The objects themselves never change, so their contents are cached.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from copy import copy
from dataclasses import replace

from voxcpm_grpc.errors import Exhausted, FailedPrecondition, NotFound, Reason, Unavailable, VoxCPMError
from voxcpm_grpc.pool.background import cancel_and_wait, keep_running
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_server.voices.store.content import Content
from voxcpm_server.voices.store.generations import SECOND, Generations, no_voice
from voxcpm_server.voices.store.io_threads import IoThreads
from voxcpm_server.voices.store.listing import Listing
from voxcpm_server.voices.store.name_index import NameIndex, nearest
from voxcpm_server.voices.store.names import Generation, Name, ObjectKind, Survey, live, new_generation, owner_key
from voxcpm_server.voices.store.objects import RETRY_SECONDS, Objects
from voxcpm_server.voices.store.records import Record, damaged, encode
from voxcpm_server.voices.store.stored_voice import Damaged, StoredVoice
from voxcpm_server.wire.inputs import VoiceChange, VoiceOptions
from voxcpm_server.wire.voice import Voice, VoiceKind

log = logging.getLogger(__name__)

THREADS = 8
OWNER_MARK = b"owner\n"  # objects must not be empty
FULL_RETRY_SECONDS = 60.0
RECORDS_BATCH = 200  # records that a sweep reads at once
READ_ATTEMPTS = 3  # a voice that is stored again while it is read needs another one


class VoiceStore:
    """The voices of all models. For one event loop, which it never blocks. Every method may raise Unavailable.

    fingerprints: the models of this server; voices of others are listed and deleted, but not loaded
    clock: seconds since the epoch
    """

    def __init__(
        self,
        objects: Objects,
        settings: VoiceSettings,
        fingerprints: Collection[str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._objects = objects
        self._settings = settings
        self._fingerprints = frozenset([fingerprints] if isinstance(fingerprints, str) else fingerprints)
        self._threads = IoThreads(THREADS, "voxcpm-voices")
        self._content = Content(objects, self._threads, settings.cache_bytes)
        self._generations = Generations(objects, self._threads, self._content, clock)
        self._names = NameIndex(objects, self._threads)
        self._adding = asyncio.Lock()
        self._count: int | None = None  # number of voices, by the last survey and the changes of this server since
        self._owned: Counter[int] = Counter()  # of these, the voices of each owner
        self._stored = 0  # voices stored by this object so far
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def count(self) -> int | None:
        """The number of voices, by the last sweep and the changes of this server since; None before the first."""
        return self._count

    async def __aenter__(self) -> VoiceStore:
        """Sweep at intervals from now on."""
        self._sweeper = keep_running(
            self._sweep_forever, "sweeping the voice store", retry_seconds=self._settings.sweep_seconds
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait(self._sweeper)
        await self._content.close()
        self._threads.close(wait=False)  # a store that hangs must not block the shutdown

    async def add(
        self,
        *wanted: StoredVoice,
        using: Collection[str] = (),
        owner: str = "",
        options: VoiceOptions | None = None,
    ) -> list[tuple[Voice, bool]]:
        """Store voices that do not exist yet. Returns each stored voice, with True if it existed before.

        owner: the caller, whose voices are counted; empty for none
        options: if the last voice existed before, what they set replaces its name, labels, time to live or adapter

        All voices are durable, and visible to every server, on return. Raises Exhausted, and stores none, if there is
        no room for all. Raises NotFound if a voice in `using`, the members of a new hifi voice, was deleted meanwhile.
        """
        async with self._time_limit(), self._adding:
            for id in using:
                await self._load(id)
            existing: dict[str, Voice] = {}
            for stored in wanted:
                with suppress(NotFound, Damaged):
                    found = await self._load(stored.voice.id)
                    if options is None or stored is not wanted[-1]:
                        existing[stored.voice.id] = found.voice
                    else:
                        existing[stored.voice.id] = await self._update(found, options.change)
            new = [await self._dated_now(stored) for stored in wanted if stored.voice.id not in existing]
            if new:
                key = owner_key(owner) if owner and self._settings.voices_per_caller < math.inf else None
                await self._make_room(len(new), key)
                await self._write(new, key)
            added = {stored.voice.id: stored.voice for stored in new}
            ids = [stored.voice.id for stored in wanted]
            return [(existing[id], True) if id in existing else (added[id], False) for id in ids]

    async def update(self, id: str, change: VoiceChange) -> Voice:
        """Change a voice; counts as a use. Returns it as it is then stored. Raises the errors of `load`."""
        async with self._time_limit(), self._adding:
            return await self._update(await self._load(id), change)

    async def named(self, name: str) -> list[Voice]:
        """The voices with this display name, in any case of its letters, the newest first. Damaged ones are left out.

        One listing finds them. Only their own records are read.
        """
        async with self._time_limit():
            found = await asyncio.gather(*map(self._generations.of, await self._names.ids(name)))
            now = self._generations.now()
            there = [one for group in found if (one := live(group, now)) is not None]
            records = await self._content.records(there)
        voices = [
            _dated(record.voice, one, one.used)
            for one in there
            if isinstance(record := records.get(one.key), Record)
            and record.voice.display_name.casefold() == name.casefold()
        ]
        return sorted(voices, key=lambda voice: -voice.created)

    async def nearest(
        self, name: str, others: Collection[str], sees: Callable[[str], bool] = lambda principal: True
    ) -> str:
        """The display name, or the one of `others`, that a misspelt name may mean; "" if none is near.

        Knows the names by the last sweep and by the changes of this server since. `sees` is true for the principals
        whose voices the caller may see.
        """
        known = [one.name for one in self._names.known.values() if sees(one.principal)]
        return await self._threads.run(nearest, name, [*known, *others])

    async def find(self, id: str) -> Voice:
        """The voice; counts as a use. Raises NotFound and Damaged."""
        async with self._time_limit():
            for _ in range(READ_ATTEMPTS):
                one = await self._generations.live(id)
                match (await self._content.records([one])).get(one.key):
                    case Record(voice=voice):
                        return _dated(voice, one, await self._generations.mark_use(one))
                    case VoxCPMError() as error:
                        raise copy(error)  # raising the cached error would keep references to its callers
            raise damaged(id, "its record is missing")

    async def load(self, id: str) -> StoredVoice:
        """The voice with its latents, read-only; counts as a use.

        Raises NotFound, Damaged, and FailedPrecondition for a voice of another model.
        """
        async with self._time_limit():
            return await self._load(id)

    async def delete(
        self, id: str, *, cascade: bool = False, may_delete: Callable[[str], bool] = lambda principal: True
    ) -> None:
        """Delete a voice; with `cascade` also the members of a hifi voice that no other voice uses. Raises NotFound.

        may_delete: true for the principals whose members may be deleted
        The voice is deleted for all servers once it is marked. If removing its objects fails, call again.
        """
        async with self._time_limit():
            found = [one for one in await self._generations.of(id) if one.record or (one.deletions and one.remains)]
            if not found:
                raise no_voice(id)
            members = await self._members(found) if cascade else set()
            await self._end(found)
            if members:
                members -= await self._members((await self._generations.survey()).voices.values())
            for member in members:
                generations = await self._generations.of(member)
                records = (await self._content.records([one for one in generations if one.record])).values()
                if all(may_delete(record.voice.principal) for record in records if isinstance(record, Record)):
                    await self._end(generations)

    async def page(
        self,
        *,
        kind: VoiceKind | None = None,
        labels: dict[str, str] | None = None,
        size: int = 0,
        token: str = "",
        beside: Collection[Voice] = (),
        sees: Callable[[str], bool] = lambda principal: True,
        fingerprint: str = "",
    ) -> tuple[list[Voice], str]:
        """A page of voices, newest first, and the token of the next page, "" on the last. Raises InvalidRequest.

        kind, labels: list only voices of this kind and with these labels
        size: most voices of a page; 0 takes the default
        token: of the previous page; empty for the first page
        beside: more voices, listed last and in their order; they replace stored voices of the same id
        sees: true for the principals whose voices are listed
        fingerprint: list only voices of this model; empty for all
        """
        listing = Listing(kind, labels or {}, size, token, sees, fingerprint)
        others = {voice.id: voice for voice in beside}
        oldest = {id: Generation(id, "", created, created) for created, id in enumerate(reversed(others), 1)}
        async with self._time_limit():
            voices = ((await self._generations.survey()).voices | oldest).values()
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
        """Remove expired voices and unfinished writes; returns the number of voices. Any server may call it."""
        await self._sweep()
        return self._count or 0

    async def maintain(self) -> None:
        """Sweep, and repair the index of names. Reads the record of each voice once in the life of this object."""
        voices = list((found := await self._sweep()).voices.values())
        described: list[tuple[Generation, Voice]] = []
        for at in range(0, len(voices), RECORDS_BATCH):
            batch = voices[at : at + RECORDS_BATCH]
            records = await self._content.records(batch)
            described += [(one, record.voice) for one in batch if isinstance(record := records.get(one.key), Record)]
        await self._names.repair(found.index, described, self._generations.now())

    async def _sweep(self) -> Survey:
        stored = self._stored
        found = await self._generations.survey()
        for one in found.ended:
            current = live(await self._generations.of(one.id), self._generations.now())
            if current is None or current.key != one.key:  # otherwise it was used since the survey
                log.info("voice id=%s expired or was stored again", one.id)
                await self._end([one])
        await self._threads.run(self._objects.remove, *map(str, found.garbage))
        self._content.keep({one.key for one in found.voices.values()})
        self._count = len(found.voices) + self._stored - stored  # may count a voice twice, but never misses one
        self._owned = found.owners()
        return found

    async def _load(self, id: str) -> StoredVoice:
        for _ in range(READ_ATTEMPTS):
            one = await self._generations.live(id)
            stored = await self._content.voice(one)
            if stored is None:
                continue
            if stored.voice.fingerprint not in self._fingerprints:
                raise FailedPrecondition(
                    f"voice {id} was made with model {stored.voice.fingerprint[:16]} and this server runs "
                    f"{', '.join(sorted(one[:16] for one in self._fingerprints))}; upload the recording again",
                    reason=Reason.VOICE_MODEL_NOT_SERVED,
                    voice=id,
                    model_fingerprint=stored.voice.fingerprint,
                )
            return replace(stored, voice=_dated(stored.voice, one, await self._generations.mark_use(one)))
        raise damaged(id, "its record or its latents are missing")

    async def _members(self, voices: Collection[Generation]) -> set[str]:
        """The ids of the members of all hifi voices among these."""
        hifis = [one for one in voices if one.record is not None and one.id.startswith(VoiceKind.HIFI.value)]
        records = (await self._content.records(hifis)).values()
        return {
            member
            for record in records
            if isinstance(record, Record)
            for member in (record.voice.prompt_id, record.voice.reference_id)
        }

    async def _dated_now(self, stored: StoredVoice) -> StoredVoice:
        """The voice as created now, but after its other generations, which a server with a fast clock may have made."""
        known = await self._generations.of(stored.voice.id)
        created = max([self._generations.now(), *(one.created + 1 for one in known)]) / SECOND
        ttl = stored.voice.ttl or self._settings.ttl_seconds
        return replace(stored, voice=replace(stored.voice, created=created, used=created, ttl=ttl))

    async def _update(self, stored: StoredVoice, change: VoiceChange) -> Voice:
        """Store a voice again with a change. Returns it as it is then stored.

        Of several servers that do this at once, the one with the newest generation succeeds. Raises NotFound if the
        voice was deleted meanwhile.
        """
        voice = stored.voice
        changed = change.of(voice)
        if changed == voice:
            return voice
        owner = (await self._generations.live(voice.id)).owner
        await self._write([await self._dated_now(replace(stored, voice=changed))], owner and owner.number)
        there = [one for one in await self._generations.of(voice.id) if one.record and not one.deletions]
        await self._end(there[1:])  # now, because one with a longer time to live would outlive the newest
        return (await self._load(voice.id)).voice

    async def _make_room(self, count: int, owner: int | None) -> None:
        limit, share = self._settings.max_voices, self._settings.voices_per_caller
        known = self._count
        if known is None or known + count > limit or (owner is not None and self._owned[owner] + count > share):
            known = await self.sweep()
        if known + count > limit:
            raise Exhausted(
                f"the store has room for {limit} voices; delete some",
                retry_after=FULL_RETRY_SECONDS,
                reason=Reason.TOO_MANY_VOICES,
                limit=limit,
            )
        if owner is not None and self._owned[owner] + count > share:
            raise Exhausted(
                f"this caller has {self._owned[owner]} stored voices and the limit is {share}; delete some",
                retry_after=FULL_RETRY_SECONDS,
                reason=Reason.TOO_MANY_VOICES_OF_CALLER,
                stored=self._owned[owner],
                limit=share,
            )

    async def _write(self, new: list[StoredVoice], owner: int | None) -> None:
        """Write all latents, then the records, which make the voices exist: members first, then their hifi voice."""
        records: dict[Name, bytes] = {}
        writes = []
        for stored in new:
            record, latents = await self._threads.run(encode, stored)
            id, generation = stored.voice.id, new_generation(round(stored.voice.created * SECOND))
            records[Name(id, generation, round(stored.voice.ttl * SECOND), ObjectKind.RECORD)] = record
            writes.append((str(Name(id, generation, len(latents), ObjectKind.LATENTS)), latents))
            if owner is not None:
                writes.append((str(Name(id, generation, owner, ObjectKind.OWNER)), OWNER_MARK))
            await self._names.put(stored.voice, generation)
        await asyncio.gather(*(self._threads.run(self._objects.write, *write) for write in writes))
        for (name, record), stored in zip(records.items(), new, strict=True):
            await self._threads.run(self._objects.write, str(name), record)
            self._content.put(f"{name.id}/{name.generation}", stored)
            self._count = (self._count or 0) + 1
            self._stored += 1
            if owner is not None:
                self._owned[owner] += 1

    async def _end(self, generations: Collection[Generation]) -> None:
        for one in generations:
            record = None if one.record is None else (await self._content.records([one])).get(one.key)
            if await self._generations.end(one) and self._count:
                self._count -= 1
                if one.owner is not None:
                    self._owned[one.owner.number] -= 1
            if isinstance(record, Record):  # otherwise the sweep removes the entry
                await self._names.remove(record.voice, one.generation)

    async def _sweep_forever(self) -> None:
        while True:
            with suppress(VoxCPMError):  # logged where it was raised
                await self.maintain()
            await asyncio.sleep(self._settings.sweep_seconds * random.uniform(0.8, 1.2))  # spreads the servers' sweeps

    @asynccontextmanager
    async def _time_limit(self) -> AsyncIterator[None]:
        seconds = self._settings.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            log.warning("voice store: no answer within %g s", seconds)
            raise Unavailable(
                f"the voice store did not answer within {seconds:g} s; retry, or speak without a stored voice",
                retry_after=RETRY_SECONDS,
                reason=Reason.VOICE_STORE_UNREACHABLE,
            ) from None


def _dated(voice: Voice, one: Generation, used: int) -> Voice:
    """The voice with its times from the names, which are newer than those in the record."""
    return replace(voice, created=one.created / SECOND, used=used / SECOND, ttl=one.ttl / SECOND)
