"""Text to speech for Pipecat. Needs the extra `pipecat`.

from voxcpm_client.pipecat import VoxCPMTTSService

tts = VoxCPMTTSService("127.0.0.1:50051", settings=VoxCPMTTSService.Settings(voice="hazel"))
"""

# pyright: basic, reportMissingImports=warning
from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, fields
from typing import Any

from pipecat.frames.frames import CancelFrame, EndFrame, Frame, TTSAudioRawFrame, TTSStoppedFrame
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TextAggregationMode, TTSService
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.types import NOT_GIVEN, NotGiven

from voxcpm_client import DEFAULT_TARGET, AsyncClient, AsyncSession, Cancelled, SpeechError, SpeechOptions
from voxcpm_client.texts.timed_words import Pace, TimedWords
from voxcpm_client.values.arguments import check_options

RETRY_SECONDS = 10.0  # a client that is made here retries for so long: a pipeline has other services to turn to
QUIET_SECONDS = 300.0  # seconds without audio until Pipecat gives a turn up; the client reports errors before
SILENCE_SECONDS = 0.02  # seconds for a text that is not spoken: Pipecat takes a turn without audio for a failure
CATEGORIES = {
    "INVALID_ARGUMENT": ErrorCategory.INVALID_REQUEST,
    "NOT_FOUND": ErrorCategory.INVALID_REQUEST,
    "FAILED_PRECONDITION": ErrorCategory.INVALID_REQUEST,
    "UNAUTHENTICATED": ErrorCategory.AUTHENTICATION,
    "PERMISSION_DENIED": ErrorCategory.AUTHORIZATION,
    "RESOURCE_EXHAUSTED": ErrorCategory.RATE_LIMIT,
    "UNAVAILABLE": ErrorCategory.CONNECTIVITY,
    "DEADLINE_EXCEEDED": ErrorCategory.CONNECTIVITY,
}


@dataclass
class VoxCPMTTSSettings(TTSSettings):
    """Settings that can change between turns. None: the default of the server.

    They are those of SpeechOptions with the same names; `voice`, `model` and `language` come from Pipecat.
    """

    style: str | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)
    speed: float | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)
    volume_gain_db: float | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)
    normalize: bool | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)
    lora: str | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)
    speech_language: str | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)
    seed: int | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)
    cfg_value: float | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)
    timesteps: int | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)
    temperature: float | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)


UNSET: dict[str, Any] = {one.name: None for one in fields(VoxCPMTTSSettings) if one.name != "extra"}


@dataclass
class _Turn:
    """The RPC of an audio context, and the task that reads it."""

    session: AsyncSession
    words: TimedWords
    reading: asyncio.Task[None] | None = None
    failed: bool = False


class VoxCPMTTSService(TTSService):
    """Speaks with a VoxCPM server. Tokens are sent as they come; the server finds the sentences.

    Turns share one connection. An interruption cancels the RPC. Each word has the time at which it is spoken, so that
    the context gets the words that were heard.
    """

    Settings = VoxCPMTTSSettings
    _settings: VoxCPMTTSSettings

    def __init__(
        self,
        client: AsyncClient | str = DEFAULT_TARGET,
        *,
        settings: VoxCPMTTSSettings | None = None,
        options: SpeechOptions | None = None,
        sample_rate: int | None = None,
        text_aggregation_mode: TextAggregationMode = TextAggregationMode.TOKEN,
        **kwargs: Any,
    ) -> None:
        """Create the service. It connects when its pipeline is set up.

        Raises InvalidArgument for an address that cannot be used, and TypeError for an unknown option.

        Args:
            client: Address of the server, or a client with a key, TLS, a timeout and so on, which the caller closes.
            settings: Settings that a TTSUpdateSettingsFrame can change from the next turn on.
            options: Other options, which stay: see SpeechOptions. `timeout` is the longest duration of a turn.
            sample_rate: Sample rate of the audio in Hz. Default: `None`, that of the pipeline.
            text_aggregation_mode: Text is sent by token or by sentence. Default: `TOKEN`.
            kwargs: Other arguments of TTSService.
        """
        self._fixed = SpeechOptions(**options or {})
        check_options("VoxCPMTTSService", self._fixed, SpeechOptions)
        store = self.Settings(**UNSET)
        if settings is not None:
            store.apply_update(settings)
        super().__init__(
            text_aggregation_mode=text_aggregation_mode,
            push_text_frames=False,
            push_start_frame=True,
            stop_frame_timeout_s=QUIET_SECONDS,
            sample_rate=sample_rate,
            settings=store,
            **kwargs,
        )
        self._owned = isinstance(client, str)
        self._client = AsyncClient(client, retry_seconds=RETRY_SECONDS) if isinstance(client, str) else client
        self._turns: dict[str, _Turn] = {}
        self._pace = Pace()
        self._warming: asyncio.Task[None] | None = None

    def can_generate_metrics(self) -> bool:
        return True

    @property
    def supports_processing_metrics(self) -> bool:
        """False: audio comes after `run_tts` has returned."""
        return False

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Open the connection beside the start of the pipeline."""
        await super().setup(setup)
        self._warming = self.create_task(self._warm_up())

    async def _warm_up(self) -> None:
        try:
            await self._client.list_models()
        except SpeechError as error:
            await self._call_event_handler("on_connection_error", error.message)
        else:
            await self._call_event_handler("on_connected")

    async def stop(self, frame: EndFrame) -> None:
        await super().stop(frame)
        await self._close()

    async def cancel(self, frame: CancelFrame) -> None:
        await super().cancel(frame)
        await self._close()

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._close()

    async def _close(self) -> None:
        for context_id in list(self._turns):
            await self._end(context_id)
        if self._warming is not None:
            await self.cancel_task(self._warming)
            self._warming = None
        if self._owned:
            await self._client.aclose()

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Send text of a turn. The audio follows in the turn's audio context."""
        try:
            turn = self._turns.get(context_id) or self._begin(context_id)
            turn.words.sent(text)
            await turn.session.send_text(text)
            await self.start_tts_usage_metrics(text)
        except Cancelled:
            pass  # the turn has failed, which its reading task reports
        except SpeechError as error:
            if turn := self._turns.get(context_id):
                turn.failed = True
            await self._report(error)
        yield None

    def _begin(self, context_id: str) -> _Turn:
        changing: dict[str, Any] = {
            name: value for name, value in self._settings.given_fields().items() if value is not None
        }
        always = SpeechOptions(format="pcm_s16le", sample_rate=self.sample_rate)
        options = SpeechOptions(**{**self._fixed, **changing, **always})
        turn = _Turn(self._client.session(**options), TimedWords(self._pace))
        self._turns[context_id] = turn
        turn.reading = self.create_task(self._read(context_id, turn))
        return turn

    async def flush_audio(self, context_id: str | None = None) -> None:
        """End the text of a turn: all of it is spoken."""
        context_id = context_id or self.get_active_audio_context_id() or ""
        if turn := self._turns.get(context_id):
            with contextlib.suppress(SpeechError):  # the client was closed, which its reading task reports
                await turn.session.finish()
        elif self.audio_context_available(context_id):  # nothing was sent, because the service has failed, for example
            await self._complete(context_id)

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Cancel the RPC of a turn: no audio of it arrives later."""
        await self.stop_all_metrics()
        await self._end(context_id)
        await super().on_audio_context_interrupted(context_id)

    async def on_audio_context_completed(self, context_id: str) -> None:
        await self._end(context_id)
        await super().on_audio_context_completed(context_id)

    async def _end(self, context_id: str) -> None:
        if turn := self._turns.pop(context_id, None):
            if turn.reading is not None:
                await self.cancel_task(turn.reading)
            await turn.session.aclose()

    async def _read(self, context_id: str, turn: _Turn) -> None:
        """Pass the audio and the words of a turn on."""
        try:
            async with turn.session as session:
                async for chunk in session:
                    # These words are estimates: those of `word_timestamps` come after their audio, and words are wanted
                    # before.
                    for word in turn.words.of(chunk):
                        await self.add_word_timestamps([(word.text, word.start)], context_id, not word.spaced)
                    if chunk.audio:
                        await self._append(context_id, chunk.audio)
        except SpeechError as error:
            if not turn.words.refused(error):
                turn.failed = True
                await self._report(error)
        if not turn.words.have_letters:
            await self._append(context_id, bytes(2 * round(SILENCE_SECONDS * self.sample_rate)))
        await self._complete(context_id)

    async def _complete(self, context_id: str) -> None:
        await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
        await self.remove_audio_context(context_id)

    async def _apply_force_complete(self, context_id: str) -> None:
        """Add the text of which no word was given, as Pipecat does at the end of a turn, unless the turn has failed."""
        turn = self._turns.get(context_id)
        if turn is None or turn.failed:
            others = {one for one in self.get_audio_contexts() if one != context_id}
            self._aggregated_frame_sequencer.clear(keep_contexts=others)
        else:
            await super()._apply_force_complete(context_id)

    async def _append(self, context_id: str, audio: bytes) -> None:
        frame = TTSAudioRawFrame(audio, self.sample_rate, 1, context_id=context_id)
        await self.append_to_audio_context(context_id, frame)

    async def _report(self, error: SpeechError) -> None:
        await self.push_error(error_msg=error.message, exception=error, category=self._classify_error(error))

    def _classify_error(self, exception: Exception) -> ErrorCategory | None:
        if not isinstance(exception, SpeechError):
            return super()._classify_error(exception)
        if exception.field == "text":  # the error belongs to one turn: the next may be right
            return ErrorCategory.APPLICATION
        if exception.reason == "TEXT_QUOTA_USED_UP":
            return ErrorCategory.QUOTA
        return CATEGORIES.get(exception.code, ErrorCategory.SERVER)
