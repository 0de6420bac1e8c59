"""What the objects of a store contain. It never changes, so it is kept, and fetched once for all who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Container
from copy import copy

from voxcpm_grpc.errors import VoxCPMError
from voxcpm_server.voices.io_threads import IoThreads
from voxcpm_server.voices.store.loaded import Loaded
from voxcpm_server.voices.store.names import Generation
from voxcpm_server.voices.store.objects import Objects
from voxcpm_server.voices.store.records import Record, decode_latents, decode_record
from voxcpm_server.voices.voice import StoredVoice


class Content:
    """Records, and up to `cache_bytes` of latents. Belongs to an event loop; what waits may raise Unavailable."""

    def __init__(self, objects: Objects, threads: IoThreads, cache_bytes: int) -> None:
        self._objects = objects
        self._threads = threads
        self._loaded = Loaded(cache_bytes)
        self._records: dict[str, Record | VoxCPMError] = {}  # by generation
        self._fetching: dict[str, asyncio.Task[StoredVoice | None]] = {}  # by generation

    async def close(self) -> None:
        """Whoever still waits for a voice is cancelled."""
        for task in (tasks := list(self._fetching.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def voice(self, one: Generation) -> StoredVoice | None:
        """None if it is there no more. Raises Damaged."""
        return self._loaded.get(one) or await self._fetch(one)

    async def records(self, voices: Collection[Generation]) -> dict[str, Record | VoxCPMError]:
        """By generation, each or what is wrong with it; what is there no more is left out."""
        missing = {str(one.record): one for one in voices if one.key not in self._records}
        if missing:
            found = await self._threads.run(self._objects.read, *missing)
            for name, data in found.items():
                self._records[missing[name].key] = _decoded(missing[name].id, data)
        return {one.key: self._records[one.key] for one in voices if one.key in self._records}

    def put(self, key: str, stored: StoredVoice) -> None:
        """That of a generation which was written just now."""
        self._loaded.put(key, stored)

    def forget(self, id: str, key: str = "") -> None:
        """The latents of a voice, and the record of that generation."""
        self._loaded.forget(id)
        self._records.pop(key, None)

    def keep(self, keys: Container[str]) -> None:
        """Forget all other generations."""
        self._records = {key: record for key, record in self._records.items() if key in keys}
        self._loaded.keep(keys)

    async def _fetch(self, one: Generation) -> StoredVoice | None:
        task = self._fetching.get(one.key)
        if task is None:
            task = self._fetching[one.key] = asyncio.create_task(self._threads.run(self._read, one))

            def done(task: asyncio.Task[StoredVoice | None]) -> None:
                del self._fetching[one.key]
                if not task.cancelled() and not task.exception() and (stored := task.result()) is not None:
                    self._loaded.put(one.key, stored)

            task.add_done_callback(done)
        try:
            return await asyncio.shield(task)
        except VoxCPMError as error:
            raise copy(error) from None  # each caller says for itself which field of its request is at fault

    def _read(self, one: Generation) -> StoredVoice | None:
        """In a thread."""
        assert one.record is not None
        if one.latents is None:
            return None
        found = self._objects.read(str(one.record), str(one.latents))
        if len(found) < 2:
            return None
        record = decode_record(one.id, found[str(one.record)])
        return decode_latents(record, found[str(one.latents)])


def _decoded(id: str, data: bytes) -> Record | VoxCPMError:
    try:
        return decode_record(id, data)
    except VoxCPMError as error:
        return error.with_traceback(None)
