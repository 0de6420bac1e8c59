"""Finds the generations of voices in a store, records their uses, and ends them."""

from __future__ import annotations

from collections.abc import Callable

from voxcpm_grpc.aio.threads import IoThreads
from voxcpm_grpc.errors import NotFound, Reason, Unavailable
from voxcpm_server.voices.store.content import Content
from voxcpm_server.voices.store.names import (
    HOUR,
    ID,
    Generation,
    Name,
    ObjectKind,
    Survey,
    created,
    generations,
    live,
    survey,
)
from voxcpm_server.voices.store.objects import RETRY_SECONDS, Objects

SECOND = 1_000_000  # names count microseconds
USE_INTERVAL = HOUR  # two recorded uses of a voice are at least so far apart


class Generations:
    """Reads the names of objects from the store at every call.

    clock: gives seconds since the epoch
    write_seconds: no server is still writing a generation that began longer ago
    """

    def __init__(
        self,
        objects: Objects,
        threads: IoThreads,
        content: Content,
        clock: Callable[[], float],
        write_seconds: float,
    ) -> None:
        self._objects = objects
        self._threads = threads
        self._content = content
        self._clock = clock
        self._write_microseconds = int(write_seconds * SECOND)
        self._marking_use: set[str] = set()  # the entries are keys of generations

    def now(self) -> int:
        """Microseconds since the epoch."""
        return int(self._clock() * SECOND)

    def is_recent(self, generation: str) -> bool:
        """True if a server may still be writing this generation, or ending what it replaces."""
        return created(generation) > self.now() - self._write_microseconds

    async def of(self, id: str) -> list[Generation]:
        """All generations of a voice, the newest first. Raises NotFound for an id of the wrong form."""
        if not ID.fullmatch(id):  # ids become names
            raise NotFound(
                "there is no voice of that id; ids look like prm_..., ref_..., hifi_... or spk_...",
                field="id",
                reason=Reason.VOICE_NOT_FOUND,
                voice=id,
            )
        return generations(await self._threads.run(self._objects.names, id)).get(id, [])

    async def live(self, id: str) -> Generation:
        """The live generation of a voice. Raises NotFound."""
        one = live(await self.of(id), self.now())
        if one is None:
            self._content.forget(id)
            raise no_voice(id)
        return one

    async def survey(self) -> Survey:
        """The state of the whole store."""
        return await self._threads.run(lambda: survey(self._objects.names(), self.now()))

    async def mark_use(self, one: Generation) -> int:
        """Record a use, unless one was recorded recently. Returns the time of the last use."""
        now, older = self.now(), one.uses
        if now - one.used <= min(USE_INTERVAL, one.ttl // 4):
            return one.used
        if one.key not in self._marking_use:
            self._marking_use.add(one.key)
            try:
                await self._mark(one, ObjectKind.USE, now)
                await self._threads.run(self._objects.remove, *map(str, older))
            except Unavailable:
                pass  # the store is read-only or was lost since; the voice can still be used
            finally:
                self._marking_use.discard(one.key)
        return now

    async def end(self, one: Generation) -> bool:
        """Mark a generation as deleted and remove its objects. Returns True if it was live."""
        if one.record is None and not one.deletions:
            return False  # a server may be writing it
        was_live = one.is_live(self.now())
        if not one.deletions:
            await self._mark(one, ObjectKind.DELETION, self.now())
        self._content.forget(one.id, one.key)
        await self._threads.run(self._objects.remove, *map(str, one.remains))
        return was_live

    async def _mark(self, one: Generation, kind: ObjectKind, now: int) -> None:
        name = Name(one.id, one.generation, now, kind)
        await self._threads.run(self._objects.write, str(name), f"{kind.value}\n".encode())


def no_voice(id: str) -> NotFound:
    """The error for a voice that does not exist."""
    return NotFound(
        f"there is no voice {id}; it was deleted, has expired or never existed",
        field="id",
        reason=Reason.VOICE_NOT_FOUND,
        voice=id,
    )


def busy(what: str) -> Unavailable:
    """The error for a change that other servers have disturbed for too long."""
    return Unavailable(f"{what} at the same time; retry", retry_after=RETRY_SECONDS, reason=Reason.VOICE_STORE_BUSY)
