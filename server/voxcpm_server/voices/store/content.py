"""Reads the contents of objects. Contents never change, so they are cached, and concurrent reads are shared."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Container
from copy import copy

from voxcpm_grpc.aio.threads import IoThreads
from voxcpm_grpc.errors import VoxCPMError
from voxcpm_server.voices.store.names import Generation
from voxcpm_server.voices.store.objects import Objects
from voxcpm_server.voices.store.records import Record, StoredVoice, decode_content, decode_record


class Content:
    """Records, and a cache of up to `cache_bytes` of content. For one event loop. Reads may raise Unavailable."""

    def __init__(self, objects: Objects, threads: IoThreads, cache_bytes: int) -> None:
        self._objects = objects
        self._threads = threads
        self._voices = _VoiceCache(cache_bytes)
        self._records: dict[str, Record | VoxCPMError] = {}  # the keys are those of generations
        self._fetching: dict[str, asyncio.Task[StoredVoice | None]] = {}  # the keys are those of generations

    async def close(self) -> None:
        """Cancel all reads of voices."""
        for task in (tasks := list(self._fetching.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def voice(self, one: Generation) -> StoredVoice | None:
        """The voice of a generation; None if it was removed. Raises Damaged."""
        return self._voices.get(one.key) or await self._fetch(one)

    async def records(self, voices: Collection[Generation]) -> dict[str, Record | VoxCPMError]:
        """The record of each generation, or its error, by key. Removed generations are missing."""
        missing = {str(one.record): one for one in voices if one.key not in self._records}
        if missing:
            found = await self._threads.run(self._objects.read, *missing)
            for name, data in found.items():
                self._records[missing[name].key] = _decoded(missing[name].id, data)
        return {one.key: self._records[one.key] for one in voices if one.key in self._records}

    def put(self, key: str, stored: StoredVoice) -> None:
        """Cache the voice of a generation that was just written."""
        self._voices.put(key, stored)

    def forget(self, id: str, key: str = "") -> None:
        """Remove the content of a voice, and the record of the generation `key`, from the cache."""
        self._voices.forget(id)
        self._records.pop(key, None)

    def keep(self, keys: Container[str]) -> None:
        """Remove all other generations from the cache."""
        self._records = {key: record for key, record in self._records.items() if key in keys}
        self._voices.keep(keys)

    async def _fetch(self, one: Generation) -> StoredVoice | None:
        task = self._fetching.get(one.key)
        if task is None:
            task = self._fetching[one.key] = asyncio.create_task(self._threads.run(self._read, one))

            def done(task: asyncio.Task[StoredVoice | None]) -> None:
                del self._fetching[one.key]
                if not task.cancelled() and not task.exception() and (stored := task.result()) is not None:
                    self._voices.put(one.key, stored)

            task.add_done_callback(done)
        try:
            return await asyncio.shield(task)
        except VoxCPMError as error:
            raise copy(error) from None  # each caller sets the field of its own request

    def _read(self, one: Generation) -> StoredVoice | None:
        """Runs in a thread."""
        assert one.record is not None
        if one.latents is None:
            return None
        found = self._objects.read(str(one.record), str(one.latents))
        if len(found) < 2:
            return None
        record = decode_record(one.id, found[str(one.record)])
        return decode_content(record, found[str(one.latents)])


class _VoiceCache:
    """The most recently used voices, up to `max_bytes` of content, by key of their generation."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._voices: OrderedDict[str, StoredVoice] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> StoredVoice | None:
        if (stored := self._voices.get(key)) is not None:
            self._voices.move_to_end(key)
        return stored

    def put(self, key: str, stored: StoredVoice) -> None:
        self._drop(key)
        self._voices[key] = stored
        self._bytes += stored.nbytes
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._voices)))

    def keep(self, keys: Container[str]) -> None:
        for key in [key for key in self._voices if key not in keys]:
            self._drop(key)

    def forget(self, id: str) -> None:
        for key in [key for key, stored in self._voices.items() if stored.voice.id == id]:
            self._drop(key)

    def _drop(self, key: str) -> None:
        if (stored := self._voices.pop(key, None)) is not None:
            self._bytes -= stored.nbytes


def _decoded(id: str, data: bytes) -> Record | VoxCPMError:
    try:
        return decode_record(id, data)
    except VoxCPMError as error:
        return error.with_traceback(None)
