"""Reads voices by their ids."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import replace

from voxcpm_grpc.errors import FailedPrecondition, Reason, VoxCPMError
from voxcpm_server.values.voice import Voice
from voxcpm_server.voices.store.content import Content
from voxcpm_server.voices.store.generations import SECOND, Generations
from voxcpm_server.voices.store.names import Generation
from voxcpm_server.voices.store.records import Record, StoredVoice, damaged

READ_ATTEMPTS = 3  # a voice that is stored again while it is read needs another one


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
        for _ in range(READ_ATTEMPTS):
            one = await self._generations.live(id)
            match (await self._content.records([one])).get(one.key):
                case Record(voice=voice):
                    return dated(voice, one, await self._generations.mark_use(one))
                case VoxCPMError() as error:
                    raise copy(error)  # raising the cached error would keep references to its callers
        raise damaged(id, "its record is missing")

    async def load(self, id: str) -> StoredVoice:
        """The voice with its content. Raises NotFound, Damaged, and FailedPrecondition for a voice of another model."""
        _, stored = await self.generation(id, own_models=True)
        return stored

    async def generation(self, id: str, *, own_models: bool = False) -> tuple[Generation, StoredVoice]:
        """The live generation of a voice, and the voice with its content. Raises as `load` with `own_models`."""
        for _ in range(READ_ATTEMPTS):
            one = await self._generations.live(id)
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
        raise damaged(id, "its record or its latents are missing")


def dated(voice: Voice, one: Generation, used: int | None = None) -> Voice:
    """The voice with its times from the names of its objects, which are newer than those in the record.

    used: time of the last use in microseconds, if it is newer than the one in the names
    """
    used = one.used if used is None else used
    return replace(voice, created=one.created / SECOND, used=used / SECOND, ttl=one.ttl / SECOND)
