"""Reads voices by their ids.

Another server may replace or delete a voice while it is read: its objects are then gone, and the voice is looked up
again. Only a voice that is still there has lost them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from copy import copy
from dataclasses import replace

from voxcpm_grpc.errors import FailedPrecondition, Reason, VoxCPMError
from voxcpm_server.values.voice import Voice
from voxcpm_server.voices.store.content import Content
from voxcpm_server.voices.store.generations import SECOND, Generations, busy
from voxcpm_server.voices.store.names import Generation, live
from voxcpm_server.voices.store.records import Record, StoredVoice, damaged

READ_ATTEMPTS = 30  # a voice that is stored again while it is read needs another one


class VoiceReader:
    """Reads voices of all models. Each read counts as a use.

    fingerprints: the models of this server; voices of others are not loaded
    """

    def __init__(self, generations: Generations, content: Content, fingerprints: Collection[str]) -> None:
        self._generations = generations
        self._content = content
        self._fingerprints = fingerprints

    async def find(self, id: str) -> Voice:
        """The voice without its content. Raises NotFound and Damaged."""
        read = ""
        for _ in range(READ_ATTEMPTS):
            one = await self._other_than(read, id)
            read = one.key
            match (await self._content.records([one])).get(one.key):
                case Record(voice=voice):
                    return dated(voice, one, await self._generations.mark_use(one))
                case VoxCPMError() as error:
                    raise copy(error)  # raising the cached error would keep references to its callers
        raise busy("other servers change this voice")

    async def load(self, id: str) -> StoredVoice:
        """The voice with its content. Raises NotFound, Damaged, and FailedPrecondition for a voice of another model."""
        _, stored = await self.generation(id, own_models=True)
        return stored

    async def generation(self, id: str, *, own_models: bool = False) -> tuple[Generation, StoredVoice]:
        """The live generation of a voice, and the voice with its content. Raises as `load` with `own_models`."""
        read = ""
        for _ in range(READ_ATTEMPTS):
            one = await self._other_than(read, id)
            read = one.key
            stored = await self._content.voice(one)
            if stored is None:
                continue
            if own_models and stored.voice.fingerprint not in self._fingerprints:
                raise FailedPrecondition(
                    f"voice {id} was made with model {stored.voice.fingerprint[:16]} and this server runs "
                    f"{', '.join(sorted(one[:16] for one in self._fingerprints))}; upload the recording again",
                    reason=Reason.VOICE_MODEL_NOT_SERVED,
                    voice=id,
                    model_fingerprint=stored.voice.fingerprint,
                )
            used = await self._generations.mark_use(one)
            return one, replace(stored, voice=dated(stored.voice, one, used))
        raise busy("other servers change this voice")

    async def described(self, voices: Collection[Generation]) -> dict[str, Voice]:
        """Voices without their content, by id. Damaged and deleted ones are left out."""
        found: dict[str, Voice] = {}
        for _ in range(READ_ATTEMPTS):
            records = await self._content.records(voices)
            described = [(one, record) for one in voices if isinstance(record := records.get(one.key), Record)]
            found |= {one.id: dated(record.voice, one) for one, record in described}
            missing = [one.id for one in voices if one.key not in records]
            groups = await asyncio.gather(*map(self._generations.of, missing))
            now = self._generations.now()
            voices = [one for group in groups if (one := live(group, now)) is not None]
            if not voices:
                break
        return found

    async def _other_than(self, read: str, id: str) -> Generation:
        """The live generation. Raises NotFound, and Damaged if it is still the one of the key `read`."""
        one = await self._generations.live(id)
        if one.key == read:
            raise damaged(id, "its record or its latents are missing")
        return one


def dated(voice: Voice, one: Generation, used: int | None = None) -> Voice:
    """The voice with its times from the names of its objects, which are newer than those in the record.

    used: time of the last use in microseconds, if it is newer than the one in the names
    """
    used = one.used if used is None else used
    return replace(voice, created=one.created / SECOND, used=used / SECOND, ttl=one.ttl / SECOND)
