"""Text to speech for LiveKit Agents. Needs the extra `livekit`.

from voxcpm_client.livekit import TTS

session = AgentSession(tts=TTS("127.0.0.1:50051", voice="hazel"), use_tts_aligned_transcript=True, ...)
"""

# pyright: basic, reportMissingImports=warning
from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator
from typing import Unpack

from livekit.agents import APIConnectionError, APIConnectOptions, APIError, APIStatusError, APITimeoutError, tts
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, TimedString

from voxcpm_client import (
    DEFAULT_TARGET,
    AsyncClient,
    DeadlineExceeded,
    InvalidArgument,
    SpeechError,
    SpeechOptions,
    Unavailable,
)
from voxcpm_client.texts.timed_words import Pace, TimedWords
from voxcpm_client.values.arguments import check_options

# A client that is made here retries for so long: LiveKit repeats failed calls, or takes another service.
RETRY_SECONDS = 10.0
SAMPLE_RATE = 24_000
SILENCE_SECONDS = 0.02  # seconds for a text that is not spoken: LiveKit takes a text without audio for a failure
# LiveKit knows by these statuses of HTTP what to repeat.
STATUSES = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "FAILED_PRECONDITION": 412,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
    "ABORTED": 503,
}


class TTS(tts.TTS):
    """Speaks with a VoxCPM server. Text is sent as it comes; the server finds the sentences.

    Streams share one connection. An interruption cancels the RPC. Each word of the transcript has the time at which it
    is spoken, so that `use_tts_aligned_transcript` tells what was heard.
    """

    def __init__(
        self,
        client: AsyncClient | str = DEFAULT_TARGET,
        **options: Unpack[SpeechOptions],
    ) -> None:
        """Create the service. It connects at `prewarm` or at its first speech.

        Raises InvalidArgument for an address that cannot be used, and TypeError for an unknown option.

        Args:
            client: Address of the server, or a client with a key, TLS, a timeout and so on, which the caller closes.
            options: See SpeechOptions. `sample_rate` is 24000 by default, `timeout` the longest duration of a turn, and
                `format` always `pcm_s16le`.
        """
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=True),
            sample_rate=options.get("sample_rate", SAMPLE_RATE),
            num_channels=1,
        )
        self._owned = isinstance(client, str)
        self._client = AsyncClient(client, retry_seconds=RETRY_SECONDS) if isinstance(client, str) else client
        self._options = SpeechOptions()
        self._pace = Pace()
        self._streams: weakref.WeakSet[SpeechStream] = weakref.WeakSet()
        self._warming: asyncio.Task[None] | None = None
        self.update_options(**options)

    @property
    def model(self) -> str:
        return self._options.get("model") or "default"

    @property
    def provider(self) -> str:
        return "voxcpm-grpc"

    def update_options(self, **options: Unpack[SpeechOptions]) -> None:
        """Change options of the turns that start after this call.

        Raises TypeError for an unknown one, and InvalidArgument for another format or sample rate.
        """
        check_options("update_options", options, SpeechOptions)
        fixed = SpeechOptions(format="pcm_s16le", sample_rate=self.sample_rate)
        for name, value in fixed.items():
            if options.get(name, value) != value:
                raise InvalidArgument(f"{name} is {options.get(name)!r}; here it stays {value!r}", field=name)
        self._options = SpeechOptions(**self._options | options | fixed)

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.ChunkedStream:
        return self._synthesize_with_stream(text, conn_options=conn_options)

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> SpeechStream:
        stream = SpeechStream(self, self._client, self._options, self._pace, conn_options=conn_options)
        self._streams.add(stream)
        return stream

    def prewarm(self) -> None:
        """Open the connection, so that the first turn need not."""
        if self._warming is None:
            self._warming = asyncio.get_running_loop().create_task(self._warm_up())

    async def _warm_up(self) -> None:
        with contextlib.suppress(SpeechError):  # the first turn reports it
            await self._client.list_models()

    async def aclose(self) -> None:
        """Cancel all streams, and close the connection unless the client was given."""
        for stream in list(self._streams):
            await stream.aclose()
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        if self._owned:
            await self._client.aclose()


class SpeechStream(tts.SynthesizeStream):
    """The speech of one turn: an RPC, from the first text to the last audio."""

    def __init__(
        self,
        service: TTS,
        client: AsyncClient,
        options: SpeechOptions,
        pace: Pace,
        *,
        conn_options: APIConnectOptions,
    ) -> None:
        super().__init__(tts=service, conn_options=conn_options)
        self._client = client
        self._options = options
        self._pace = pace

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        words = TimedWords(self._pace)
        pieces = self._pieces(words)
        first = await anext(pieces, "")  # the call begins with the text
        try:
            stream = self._client.speak(_joined(first, pieces), **self._options)
        except SpeechError as error:
            raise api_error(error) from error
        output_emitter.initialize(
            request_id=stream.request_id,
            sample_rate=self._tts.sample_rate,
            num_channels=1,
            mime_type="audio/pcm",
            stream=True,
        )
        if not first:
            return
        output_emitter.start_segment(segment_id=stream.request_id)
        try:
            async with stream:
                async for chunk in stream:
                    # These words are estimates: those of `word_timestamps` come after their audio, and words are wanted
                    # before.
                    for word in words.of(chunk):
                        output_emitter.push_timed_transcript(TimedString(word.text, word.start, word.end))
                    output_emitter.push(chunk.audio)
        except SpeechError as error:
            if not words.refused(error):
                raise api_error(error) from error
        if not words.have_letters:
            output_emitter.push(bytes(2 * round(SILENCE_SECONDS * self._tts.sample_rate)))
        if rest := words.rest():
            output_emitter.push_timed_transcript(TimedString(rest))
        output_emitter.end_segment()

    async def _pieces(self, words: TimedWords) -> AsyncIterator[str]:
        """The text of the turn as it comes, up to the flush that ends it."""
        begun = False
        async for piece in self._input_ch:
            if isinstance(piece, str):
                begun = True
                self._mark_started()
                words.sent(piece)
                yield piece
            elif begun:
                return


async def _joined(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for piece in rest:
        yield piece


def api_error(error: SpeechError) -> APIError:
    """The error of LiveKit for one of the server, with the sentence of the server."""
    match error:
        case Unavailable():
            return APIConnectionError(error.message)
        case DeadlineExceeded():
            return APITimeoutError(error.message)
    return APIStatusError(
        error.message,
        status_code=STATUSES.get(error.code, 500),
        request_id=error.request_id or None,
        body={"code": error.code, "reason": error.reason, "field": error.field, **error.details},
        retryable=error.code != "RESOURCE_EXHAUSTED" or error.retry_after is not None,
    )
