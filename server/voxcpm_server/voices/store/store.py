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
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress

from voxcpm_grpc.aio.tasks import cancel_and_wait, keep_running
from voxcpm_grpc.aio.threads import IoThreads
from voxcpm_grpc.errors import Reason, Unavailable, VoxCPMError
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_server.values.inputs import VoiceChange, VoiceOptions
from voxcpm_server.values.voice import Voice, VoiceKind
from voxcpm_server.voices.store.changes import VoiceChanges
from voxcpm_server.voices.store.content import Content
from voxcpm_server.voices.store.generations import Generations
from voxcpm_server.voices.store.listing import Listing
from voxcpm_server.voices.store.named_voices import NamedVoices, NameIndex, nearest
from voxcpm_server.voices.store.names import Generation, Survey, live, owner_key
from voxcpm_server.voices.store.objects import RETRY_SECONDS, Objects
from voxcpm_server.voices.store.reader import VoiceReader
from voxcpm_server.voices.store.records import Record, StoredVoice
from voxcpm_server.voices.store.room import Room
from voxcpm_server.voices.store.writer import VoiceWriter

log = logging.getLogger(__name__)

THREADS = 8
CLAIM_SECONDS = 60.0  # seconds for clocks that differ, beyond the time in which a voice is written
RECORDS_BATCH = 200  # a sweep reads so many records at once


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
        self._threads = IoThreads(THREADS, "voxcpm-voices")
        self._content = Content(objects, self._threads, settings.cache_bytes)
        self._generations = Generations(
            objects, self._threads, self._content, clock, settings.timeout_seconds + CLAIM_SECONDS
        )
        self._names = NameIndex(objects, self._threads)
        self._room = Room(settings)
        self._reader = VoiceReader(
            self._generations,
            self._content,
            frozenset([fingerprints] if isinstance(fingerprints, str) else fingerprints),
        )
        self._named = NamedVoices(self._names, self._generations, self._reader)
        self._writer = VoiceWriter(
            objects, self._threads, self._content, self._generations, self._names, self._named, self._room
        )
        self._changes = VoiceChanges(
            self._reader, self._writer, self._generations, self._content, ttl_seconds=settings.ttl_seconds
        )
        self._writing = asyncio.Lock()
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def count(self) -> int | None:
        """The number of voices, by the last sweep and the changes of this server since; None before the first."""
        return self._room.count

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
        options: if the last voice existed before, it gets these properties, the name beside those that it has

        All voices are durable, and visible to every server, on return. Raises AlreadyExists if another voice of the
        same owner and model has the name. Raises Exhausted, and stores none, if there is no room for all. Raises
        NotFound if a voice in `using`, the members of a new hifi voice, was deleted meanwhile.
        """
        key = owner_key(owner) if owner and self._settings.voices_per_caller < math.inf else None

        async def check(count: int) -> None:
            for id in using:
                await self._reader.load(id)
            if count:
                await self._room.make(count, key, self.sweep)

        async with self._time_limit(), self._writing:
            return await self._changes.add(wanted, options and options.of, key, check)

    async def update(self, id: str, change: VoiceChange) -> Voice:
        """Change a voice; counts as a use. Returns it as it is then stored.

        Raises the errors of `load`, and AlreadyExists if another voice of the same owner and model has its new name.
        """
        async with self._time_limit(), self._writing:
            changed = await self._changes.change(id, change.of, own_models=True)
            assert changed is not None
            return changed

    async def named(self, name: str) -> list[Voice]:
        """The voices with a name, in any case of its letters, the newest first; each shows this name.

        One listing finds them, and only their own records are read. Damaged ones are left out.
        """
        async with self._time_limit():
            return await self._named.of(name)

    async def nearest(
        self, name: str, others: Collection[str], sees: Callable[[str], bool] = lambda principal: True
    ) -> str:
        """The display name, or the one of `others`, that a misspelt name may mean; "" if none is near.

        Knows the names by the last sweep and by the changes of this server since. `sees` is true for the principals
        whose voices the caller may see.
        """
        known = [one.name for names in self._names.known.values() for one in names if sees(one.principal)]
        return await self._threads.run(nearest, name, [*known, *others])

    async def find(self, id: str) -> Voice:
        """The voice; counts as a use. Raises NotFound and Damaged."""
        async with self._time_limit():
            return await self._reader.find(id)

    async def load(self, id: str) -> StoredVoice:
        """The voice with its content, read-only; counts as a use.

        Raises NotFound, Damaged, and FailedPrecondition for a voice of another model.
        """
        async with self._time_limit():
            return await self._reader.load(id)

    async def delete(
        self,
        id: str,
        *,
        name: str = "",
        cascade: bool = False,
        may_delete: Callable[[str], bool] = lambda principal: True,
    ) -> Sequence[str]:
        """Delete a voice, or only its name `name` if it has others, which are returned. Raises NotFound.

        cascade: treat the members of a hifi voice in the same way; a member that another voice uses, or that has a name
        of its own, stays
        may_delete: true for the principals whose members may be deleted

        The voice is deleted for all servers once it is marked. If removing its objects fails, call again.
        """
        async with self._time_limit(), self._writing:
            return await self._changes.delete(id, name, cascade=cascade, may_delete=may_delete)

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
        beside: more voices, listed last and in their order, with the names of stored voices of the same id
        sees: true for the principals whose voices are listed
        fingerprint: list only voices of this model; empty for all
        """
        listing = Listing(kind, labels or {}, size, token, sees, fingerprint)
        others = {voice.id: voice for voice in beside}
        oldest = {id: Generation(id, "", created, created) for created, id in enumerate(reversed(others), 1)}
        async with self._time_limit():
            stored = (await self._generations.survey()).voices
            for batch in await self._threads.run(listing.batches, (stored | oldest).values()):
                described = await self._reader.described([stored[one.id] for one in batch if one.id in stored])
                for one in batch:
                    voice = described.get(one.id)
                    if one.id in others:
                        listing.offer(one, others[one.id].with_names_of(voice))
                    elif voice is not None:
                        listing.offer(one, voice)
                if listing.full:
                    break
        return listing.page, listing.next_token

    async def sweep(self) -> int:
        """Remove expired voices and unfinished writes; returns the number of voices. Any server may call it."""
        await self._sweep()
        return self._room.count or 0

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
        stored = self._room.stored
        found = await self._generations.survey()
        for one in found.ended:
            current = live(await self._generations.of(one.id), self._generations.now())
            if current is None or current.key != one.key:  # otherwise it was used since the survey
                log.info("voice id=%s expired or was stored again", one.id)
                await self._writer.end([one])
        await self._threads.run(self._objects.remove, *map(str, found.garbage))
        self._content.keep({one.key for one in found.voices.values()})
        self._room.recount(found, stored)
        return found

    async def _sweep_forever(self) -> None:
        while True:
            with suppress(VoxCPMError):  # the error was logged where it was raised
                await self.maintain()
            # The random factor spreads the servers' sweeps.
            await asyncio.sleep(self._settings.sweep_seconds * random.uniform(0.8, 1.2))

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
