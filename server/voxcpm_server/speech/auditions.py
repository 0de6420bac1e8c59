"""Texts that are spoken with a voice that was just stored, on the reply stream of its upload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from voxcpm_server.speech.session import Session
from voxcpm_server.speech.writer import ChunkWriter
from voxcpm_server.values.inputs import Audition, Flush, GenerateConfig, GenerateInput, Text, UploadInput
from voxcpm_server.values.outputs import EndReason
from voxcpm_server.voices.uploads import after_commit
from voxcpm_server.wire.fields import inside


class Auditions:
    """Speaks one text after the other, each in a session of its own.

    So a text sounds as in a Generate stream of its own with the same seed, and queues, deadlines, quotas and errors are
    those of Generate. Messages are read one at a time: flow control holds back a caller that sends faster than its
    texts are spoken.

    open_session: makes a session on the reply stream, for a config
    chunks: of the stream, which has begun with the handle
    preview: the config of the preview, whose output and seed serve all texts
    """

    def __init__(
        self, open_session: Callable[[GenerateConfig], Session], *, chunks: ChunkWriter, preview: GenerateConfig
    ) -> None:
        self._open_session = open_session
        self._chunks = chunks
        self._preview = preview
        self.session: Session | None = None
        self.characters = 0  # characters of all texts

    async def preview(self, text: str) -> None:
        """Speak the preview. Raises VoxCPMError."""
        with inside("config.preview"):
            await self._speak(text, self._preview)
        await self._chunks.flush(None)

    async def run(self, messages: AsyncIterator[UploadInput], idle_seconds: float) -> None:
        """Speak the auditions until the messages end, or pause for `idle_seconds`. Raises VoxCPMError."""
        while True:
            try:
                async with asyncio.timeout(idle_seconds):
                    message = await anext(messages, None)
            except TimeoutError:
                self._chunks.summary.reason = EndReason.IDLE
                return
            if message is None:
                return
            if not isinstance(message, Audition):
                raise after_commit(message, "send only auditions after it")
            self._chunks.first_turn += 1
            await self._audition(message)

    async def _audition(self, audition: Audition) -> None:
        turn = audition.config.turn
        if not audition.has_seed:
            turn = replace(turn, sampling=replace(turn.sampling, seed=self._preview.turn.sampling.seed))
        with inside("audition"):
            config = replace(audition.config, output=self._preview.output, turn=turn)
            await self._speak(audition.text, config, Flush(audition.tag, end_turn=True))

    async def _speak(self, text: str, config: GenerateConfig, *after: GenerateInput) -> None:
        self.characters += len(text)
        self.session = self._open_session(config)
        await self.session.run(Text(text), _all(after))


async def _all(messages: tuple[GenerateInput, ...]) -> AsyncIterator[GenerateInput]:
    for message in messages:
        yield message
