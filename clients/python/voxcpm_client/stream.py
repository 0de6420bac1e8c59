"""One Generate stream. It sends text, receives audio, and is retried if it is lost before its first audio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from voxcpm_client.errors import SpeechError
from voxcpm_client.messages import responses
from voxcpm_client.messages.requests import turn_config
from voxcpm_client.status import CallStatus
from voxcpm_client.texts.text import Pause, Text, parts, pieces
from voxcpm_client.transport.connection import Connection
from voxcpm_client.transport.request_queue import RequestQueue
from voxcpm_client.transport.retry import Attempts
from voxcpm_client.transport.text_window import NO_LIMIT, TextWindow
from voxcpm_client.values.arguments import check_options, check_position, check_string
from voxcpm_client.values.options import TurnOptions
from voxcpm_client.values.results import Chunk, Header, Speech, SpeechWarning, Summary
from voxcpm_grpc.v1 import tts_pb2 as pb

LIMIT_SECONDS = 30.0  # seconds for the question for the limit of text


class AsyncStream:
    """The audio of one call as it is made. Iterate over it once; each item is a Chunk.

    The end of the `async with` block, or `aclose()`, cancels a call that is still running. Inside the block, a wait for
    a chunk can time out (`asyncio.timeout`) and be repeated without a loss of audio. Iteration raises SpeechError. If
    the connection is lost before the first audio, or the server is full and gives a time to try again, the client
    retries the call.
    """

    request_id: str
    """Id of the call in the server's log."""

    header: Header | None
    """The settings of the stream. Set from the first chunk on."""

    summary: Summary | None
    """Totals and times of the stream. Set after the last chunk."""

    warnings: tuple[SpeechWarning, ...]
    """Doubts of the server about the recordings and the text so far."""

    def __init__(
        self, connection: Connection, config: pb.GenerateConfig, text: Text | None, *, timeout: float | None
    ) -> None:
        self.request_id = config.request_id
        self.header = None
        self.summary = None
        self.warnings = ()
        self._connection = connection
        self._text = text
        self._timeout = timeout
        self._requests = RequestQueue(pb.GenerateRequest(config=config))
        self._by_flush = config.segmentation.mode == pb.SEGMENTATION_MODE_MANUAL  # this client cannot wait for a flush
        self._window = TextWindow()
        self._window.was_read = text is not None  # the text has a task of its own
        self._attempts: Attempts | None = None
        self._feeder: asyncio.Task[None] | None = None
        self._call: Any = None
        self._responses: AsyncGenerator[pb.AudioChunk] | None = None
        self._status: CallStatus | None = None
        self._answered = False
        self._reading: asyncio.Task[pb.AudioChunk | None] | None = None
        self._warned: set[str] = set()
        self._entered = False
        self._ended = False

    async def start(self) -> None:
        """Start the call. `async with` and the first chunk do this too."""
        if self._ended:
            return
        self._connection.check()
        if self._attempts is None:
            self._connection.streams.add(self)
            self._attempts = self._connection.attempts(self._timeout)
            if isinstance(self._text, str) and self._window.take(self._text):
                self._put_whole(self._text)
            elif self._text is not None:
                self._feeder = asyncio.create_task(self._feed(self._text))
            self._start_call(self._attempts)

    async def __aenter__(self) -> Self:
        self._entered = True
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the call, which frees its slot on the server. Has no effect if the stream has ended."""
        self._ended = True
        if not self._connection.lost:  # else the call ended with its event loop, or belongs to another process
            await self.release()

    async def release(self) -> None:
        """Cancel the call, and free all that belongs to gRPC. The client does this when it is closed."""
        self._window.close()
        if self._call is not None:
            self._call.cancel()
        self._requests.close()
        while running := [task for task in self._tasks() if not task.done()]:  # a start that goes on adds some
            if self._call is not None:
                self._call.cancel()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        for task in self._tasks():
            _ = task.cancelled() or task.exception()  # nobody else may read it
        self._feeder = self._reading = None  # their exceptions refer to this stream
        call, responses = self._call, self._responses
        self._call = self._responses = self._status = None  # each holds the channel; another task may release it, too
        if call is not None:
            call.cancel()
        if responses is not None:
            await responses.aclose()  # the generator and the call refer to each other

    def _tasks(self) -> list[asyncio.Task[Any]]:
        return [task for task in (self._feeder, self._reading) if task is not None]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        await self.start()
        self._window.was_read = True
        while (message := await self._read()) is not None:
            self._window.handle(message.segment_events)
            if message.HasField("header"):
                self.header = responses.header(message.header)
            if message.HasField("summary"):
                self.summary = responses.summary(message.summary)
            if new := [one for one in message.warnings if one.message not in self._warned]:  # a retry repeats some
                self._warned.update(one.message for one in new)
                self.warnings += responses.warnings(new, self.request_id)
            answers = message.HasField("flush_done") or message.HasField("interrupted")
            if message.audio or answers:
                self._requests.drop_sent()  # from here on a retry would repeat audio or an answer
            if message.audio or answers or message.segment_events or message.words:
                if self.header is None:
                    raise SpeechError("the server sent audio before its header", request_id=self.request_id)
                return responses.chunk(message, self.header)
        await self.aclose()
        raise StopAsyncIteration

    async def speech(self) -> Speech:
        """Read the stream to its end and return all the audio."""
        chunks = [chunk async for chunk in self]
        if self.header is None:
            raise SpeechError("the server ended the stream without a header", request_id=self.request_id)
        words = tuple(word for chunk in chunks for word in chunk.words)
        return responses.speech(chunks, self.header, self.summary, self.warnings, words)

    async def _read(self) -> pb.AudioChunk | None:
        """The next message; None at the end."""
        if self._ended:
            return None
        # The reading has a task of its own, because grpc.aio cancels the whole call if a reader is cancelled.
        reading = self._reading = self._reading or asyncio.create_task(self._receive())
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            if not reading.cancelled():  # only the caller's wait was cancelled
                if not self._entered:  # no `async with` block will close the stream
                    await self.aclose()
                raise
            self._raise_feeder_error()
            if self._ended:  # another task has closed the stream
                return None
            self._connection.explain_cancellation()
            raise
        except BaseException:
            await self.aclose()
            raise
        finally:
            if reading.done():
                self._reading = None
            del reading  # its exception refers to this frame

    async def _receive(self) -> pb.AudioChunk | None:
        """The next message, after as many retries as it takes; None at the end."""
        while True:
            if self._responses is None:  # the client or the stream was closed before this task ran
                self._connection.check()
                return None
            assert self._status is not None and self._attempts is not None
            try:
                message = await anext(self._responses, None)
                self._answered = self._connection.reached = True
                return message
            except grpc.aio.AioRpcError as error:
                if self.summary is not None:  # nothing follows it, whatever a proxy made of the status OK
                    return None
                failed = await self._status.final(error)
            try:
                if not self._requests.replayable:
                    raise await self._connection.failure(
                        failed, self._attempts, self.request_id, answered=self._answered
                    )
                await self._connection.recover(failed, self._attempts, self.request_id, answered=self._answered)
            finally:
                del failed  # the error refers to this frame
            self._raise_feeder_error()
            self._start_call(self._attempts)

    def _start_call(self, attempts: Attempts) -> None:
        self._call = self._connection.stub.Generate(
            self._requests.messages(), timeout=attempts.remaining(), metadata=self._connection.metadata
        )
        self._status = CallStatus(self._call)
        self._answered = False
        self._responses = aiter(self._call)

    def _put_whole(self, text: str) -> None:
        """Send a text that needs no task, because the server has room for all of it."""
        if text:
            self._requests.put_now(pb.GenerateRequest(text=text))
        self._requests.close()

    async def _feed(self, text: Text) -> None:
        try:
            async with aclosing(pieces(text)) as source:
                async for piece in source:
                    if isinstance(piece, Pause):
                        await self._put_pause(piece)
                    else:
                        await self._send(piece)
            self._requests.close()
        except BaseException:
            self._call.cancel()
            raise

    async def _send(self, text: str) -> None:
        await self._window.send(text, self._put_text, self._text_limit)

    async def _put(self, message: pb.GenerateRequest) -> None:
        self._connection.check()
        await self._requests.put(message)

    async def _put_text(self, text: str) -> None:
        await self._put(pb.GenerateRequest(text=text))

    async def _put_pause(self, pause: Pause) -> None:
        self._window.open_turn()
        await self._put(pb.GenerateRequest(pause=pb.Pause(milliseconds=round(1000 * pause.seconds))))

    async def _text_limit(self) -> int:
        if self._by_flush:
            return NO_LIMIT
        remaining = self._timeout if self._attempts is None else self._attempts.remaining()
        seconds = LIMIT_SECONDS if remaining is None else min(LIMIT_SECONDS, remaining)
        return await self._connection.text_limit(self._connection.attempts(seconds))

    def _raise_feeder_error(self) -> None:
        """Raise the exception of the caller's text iterator, if it raised one."""
        if self._feeder is not None and self._feeder.done() and not self._feeder.cancelled():
            error = self._feeder.exception()
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # the error refers to this frame


class AsyncSession(AsyncStream):
    """A conversation on one stream. Text can be sent while the audio of earlier text is read.

    Sending waits while too much text waits to be spoken (`ModelInfo.limits.max_buffered_text_chars`), so long texts
    need one task that sends and one that reads:

        async with client.session(voice="ref_...") as session:
            await session.send_text("Hello. ")
            await session.send_text("How are you?")
            await session.finish()
            async for chunk in session:
                play(chunk.samples)

    Every method that sends raises Cancelled after `finish` and after the end of the stream.
    """

    async def send_text(self, text: str) -> None:
        """Append text to the open turn. An interrupt drops what the server has not taken of it yet.

        Args:
            text: Any part of the text, of any length. It is split into messages as needed.
        """
        check_string(text, "text")
        self._connection.check()
        interrupts = self._window.interrupts
        for piece in parts(text):
            if interrupts == self._window.interrupts:
                await self._send(piece)

    async def flush(self, *, end_turn: bool = False, tag: str = "") -> None:
        """Have all text sent so far spoken now. A chunk with `flushed` follows when all its audio has been sent.

        Args:
            end_turn: True also ends the turn; the next text starts a new one. Default: `False`.
            tag: Returned as `Flushed.tag`, at most 128 characters. Default: `""`.
        """
        check_string(tag, "tag")
        if end_turn:
            self._window.end_turn()
        await self._put(pb.GenerateRequest(flush=pb.Flush(end_turn=end_turn, tag=tag)))

    async def interrupt(self, *, tag: str = "", played_samples: int | None = None) -> None:
        """End the turn, and drop all text that is not spoken and all audio that is not sent yet. A chunk with
        `interrupted` follows.

        Args:
            tag: Returned as `Interrupted.tag`, at most 128 characters. Default: `""`.
            played_samples: Samples that the listener has heard; the answer then names their text. Default: `None`.
        """
        check_string(tag, "tag")
        if played_samples is not None:
            check_position(played_samples, "played_samples")
        self._window.interrupt()
        await self._put(pb.GenerateRequest(interrupt=pb.Interrupt(tag=tag, played_samples=played_samples)))

    async def pause(self, seconds: float) -> None:
        """Add silence after all text sent so far, which is spoken first as by a flush. It opens a turn if none is open.

        Args:
            seconds: Length of the silence, 0.001 to 60, rounded to milliseconds. Speed does not change it.
        """
        await self._put_pause(Pause(seconds))

    async def set_turn(self, **options: Unpack[TurnOptions]) -> None:
        """Change the settings of the turns that start after this call. The open turn keeps its own.

        Args:
            options: See TurnOptions. What is left out has its default, but the seed stays that of the session.
        """
        check_options("set_turn", options, TurnOptions)
        await self._put(pb.GenerateRequest(turn=turn_config(options)))

    async def finish(self) -> None:
        """Send no more text. The stream ends when all of the text has been spoken."""
        self._connection.check()
        # No Finish message is sent: the server could end the call before the half-close arrives, and proxies such as
        # HAProxy 2.6 then reset the stream instead of forwarding the status.
        self._requests.close()
