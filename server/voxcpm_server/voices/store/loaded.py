"""Voices kept in memory, so that speaking with one again fetches nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

from voxcpm_server.voices.store.names import Generation
from voxcpm_server.voices.voice import StoredVoice


class Loaded:
    """The latest used, as many as fit into `max_bytes` of latents."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._voices: OrderedDict[str, StoredVoice] = OrderedDict()
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        return self._bytes

    def get(self, one: Generation) -> StoredVoice | None:
        if (stored := self._voices.get(one.key)) is not None:
            self._voices.move_to_end(one.key)
        return stored

    def put(self, key: str, stored: StoredVoice) -> None:
        self._drop(key)
        self._voices[key] = stored
        self._bytes += stored.nbytes
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._voices)))

    def keep(self, keys: Container[str]) -> None:
        """Forget all others."""
        for key in [key for key in self._voices if key not in keys]:
            self._drop(key)

    def forget(self, id: str) -> None:
        for key in [key for key, stored in self._voices.items() if stored.voice.id == id]:
            self._drop(key)

    def _drop(self, key: str) -> None:
        if (stored := self._voices.pop(key, None)) is not None:
            self._bytes -= stored.nbytes
