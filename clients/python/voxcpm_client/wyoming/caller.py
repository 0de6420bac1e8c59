"""One connection of a caller: its events in, audio and errors out."""

# pyright: basic, reportMissingImports=warning
from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, Eventable, async_write_event
from wyoming.ping import Ping, Pong
from wyoming.tts import SynthesizeStopped

from voxcpm_client.client import AsyncClient
from voxcpm_client.errors import DeadlineExceeded, InvalidArgument, SpeechError
from voxcpm_client.texts.timed_words import Pace, TimedWords
from voxcpm_client.values.options import SpeechOptions
from voxcpm_client.values.results import Chunk
from voxcpm_client.wyoming import messages
from voxcpm_client.wyoming.events import SKIPPED_AT_ONCE, BadEvent, read_event
from voxcpm_grpc.text.characters import escaped

WAITING_EVENTS = 4  # a caller has so many at most; the socket holds the rest back
UNREACHABLE = "the speech server cannot be reached; the log of this service has the cause"
TOO_LATE = "the speech took longer than the --timeout of this service"
INVALID = "INVALID_REQUEST"  # the server's reasons are written alike
WIDTH, CHANNELS = 2, 1  # bytes of a sample, and channels

log = logging.getLogger("voxcpm_client.wyoming")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The times that a caller has, in seconds."""

    event: float = 20.0
    """The time from the first byte of an event to its last one."""

    idle: float = 300.0
    """The time without an event where one is waited for."""

    write: float = 60.0
    """The time until the caller takes what it is sent."""

    linger: float = 2.0
    """The time after an error in which the service reads on: otherwise the caller might not get the error."""


class Caller:
    """Serves one connection until its end. An error ends it: a caller waits for audio, and would wait for ever."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client: AsyncClient,
        speech: SpeechOptions,
        timeouts: Timeouts,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._client = client
        self._speech = speech
        self._timeouts = timeouts
        self.idle_since: float | None = time.monotonic()
        """Time from which on the caller has had nothing to wait for; None while it has. An event may be half there."""
        self._events: asyncio.Queue[Event | BadEvent] = asyncio.Queue(WAITING_EVENTS)

    async def run(self) -> None:
        """Serve the connection. Its end cancels the speech, which frees the slot on the server."""
        reading, handling = asyncio.create_task(self._read()), asyncio.create_task(self._handle())
        try:
            await asyncio.wait((reading, handling), return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and not reading.result():
                await handling
        finally:
            reading.cancel()
            handling.cancel()
            for result in await asyncio.gather(reading, handling, return_exceptions=True):
                if isinstance(result, Exception):
                    log.error("a connection failed", exc_info=result)
            await self._close()

    async def refuse(self, text: str, code: str) -> None:
        """Send an error, and end the connection."""
        with contextlib.suppress(OSError, TimeoutError):
            await self._write(Error(text, code))
        await self._close()

    async def _read(self) -> bool:
        """Queue the events. True at the end of the connection, False after an event that cannot be understood."""
        while True:
            try:
                event = await read_event(self._reader, self._timeouts.event)
            except OSError:
                return True
            except BadEvent as error:
                await self._events.put(error)
                return False
            if event is None:
                return True
            await self._events.put(event)

    async def _next(self) -> Event:
        try:
            async with asyncio.timeout(self._timeouts.idle):
                event = await self._events.get()
        except TimeoutError:
            raise BadEvent(f"no event came for {self._timeouts.idle:g} s; connect again for the next one") from None
        if isinstance(event, BadEvent):
            raise event
        return event

    async def _handle(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):  # the caller has gone, or does not read
            try:
                while True:
                    self.idle_since = time.monotonic()
                    event = await self._next()
                    self.idle_since = None
                    await self._answer(event)
            except BadEvent as error:
                await self._write(Error(str(error), INVALID))
            except InvalidArgument as error:
                await self._write(Error(str(error), error.reason or INVALID))
            except SpeechError as error:
                log.warning("call failed: %s", escaped(str(error)))
                await self._write(Error(_text_of(error), error.reason or error.code))

    async def _answer(self, event: Event) -> None:
        match event.type:
            case "describe":
                models, voices = await self._client.list_models(), await self._client.voices()
                await self._write(messages.info(models, voices, self._speech.get("language", "")))
            case "ping":
                await self._write(Pong(Ping.from_event(event).text))
            case "select-program":
                self._speech = SpeechOptions(**self._speech | {"model": messages.program_of(event)})
            case "synthesize":
                await self._speak(_once(messages.text_of(event)), await self._options(event))
            case "synthesize-start":
                await self._speak(self._chunks(), await self._options(event))
                await self._write(SynthesizeStopped())
            case "synthesize-chunk" | "synthesize-stop":
                raise BadEvent(f"{event.type} came without synthesize-start before it")

    async def _options(self, event: Event) -> SpeechOptions:
        """The options of a request to speak. A model that takes no language finds that of the speech in the text."""
        options = messages.options_of(event, self._speech)
        if options.get("speech_language") != self._speech.get("speech_language"):  # of the request
            model = await self._client.model_info(options.get("model", ""))
            if not model.speech_languages:
                del options["speech_language"]
        return options

    async def _chunks(self) -> AsyncIterator[str]:
        """The text of a stream as it comes."""
        while (event := await self._next()).type != "synthesize-stop":
            match event.type:
                case "synthesize-chunk":
                    yield messages.text_of(event)
                case "synthesize-start":
                    raise BadEvent("synthesize-start came twice without synthesize-stop between")
                case "synthesize":  # it repeats the whole text, for services that do not take streams
                    pass
                case _:
                    await self._answer(event)

    async def _speak(self, text: AsyncIterator[str], options: SpeechOptions) -> None:
        started, begun, words = False, list[str](), TimedWords(Pace())
        async with self._client.speak(_noted(text, words), **options | {"format": "pcm_s16le"}) as stream:
            try:
                async for chunk in stream:
                    begun += [event.text for event in chunk.events if event.kind == "started"]
                    if chunk.audio:
                        if not started:
                            await self._write(AudioStart(chunk.sample_rate, WIDTH, CHANNELS, 0))
                            started = True
                        await self._write(_audio(chunk, " ".join(begun)))
                        begun.clear()
            except InvalidArgument as error:
                if not words.refused(error):
                    raise
        if not started:
            await self._write(AudioStart(await self._rate(options), WIDTH, CHANNELS, 0))
        await self._write(AudioStop())
        log.info("spoke id=%s chars=%s", stream.request_id, stream.summary.input_chars if stream.summary else 0)

    async def _rate(self, options: SpeechOptions) -> int:
        """The sample rate of speech with these options."""
        model = options.get("model", "")
        return options.get("sample_rate") or (await self._client.model_info(model)).output_sample_rate

    async def _write(self, message: Eventable | Event) -> None:
        async with asyncio.timeout(self._timeouts.write):
            await async_write_event(message if isinstance(message, Event) else message.event(), self._writer)

    async def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.write_eof()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._timeouts.linger):
                while await self._reader.read(SKIPPED_AT_ONCE):
                    pass
        self._writer.close()
        try:
            async with asyncio.timeout(self._timeouts.write):
                await self._writer.wait_closed()
        except TimeoutError:
            self._writer.transport.abort()
        except OSError:
            pass


def _text_of(error: SpeechError) -> str:
    """The sentence of an error for callers, which are not to know the address of the server."""
    if isinstance(error, DeadlineExceeded):
        return TOO_LATE
    return UNREACHABLE if error.about_connection else str(error)


async def _noted(text: AsyncIterator[str], words: TimedWords) -> AsyncIterator[str]:
    async for piece in text:
        words.sent(piece)
        yield piece


async def _once(text: str) -> AsyncIterator[str]:
    yield text


def _audio(chunk: Chunk, begun: str) -> Event:
    """The event of a chunk. Its data has the text whose audio begins in it, which other callers do not look at."""
    milliseconds = 1000 * chunk.offset // chunk.sample_rate
    event = AudioChunk(chunk.sample_rate, WIDTH, CHANNELS, chunk.audio, milliseconds).event()
    if begun:
        event.data["text"] = begun
    return event
