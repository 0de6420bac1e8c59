"""One Generate stream: text goes out, audio comes in, and a stream lost before its first audio is begun again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

import grpc

from voxcpm_client import convert
from voxcpm_client.connection import Connection
from voxcpm_client.errors import Cancelled, SpeechError
from voxcpm_client.results import Chunk, Header, Speech, Summary
from voxcpm_client.retry import Attempts
from voxcpm_client.status import Outcome
from voxcpm_client.text import Text, pieces
from voxcpm_grpc.v1 import tts_pb2 as pb

REPLAY_BYTES = 1 << 20  # text kept for a retry; a stream that sent more before its first audio is not retried
WAITING_MESSAGES = 64  # messages not yet handed to the transport, before a sender has to wait


class Outbox:
    """The messages of a stream in order, kept until the first audio so that another attempt can send them again."""

    def __init__(self, first: pb.GenerateRequest) -> None:
        self._kept = [first]
        self._first = 0  # index within the stream of the first message kept
        self._sent = 0  # messages that the attempt under way has taken
        self._bytes = 0
        self._attempt = 0
        self._closed = False
        self._changed = asyncio.Condition()
        self.replayable = True

    async def put(self, message: pb.GenerateRequest) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or self._end - self._sent < WAITING_MESSAGES)
            if self._closed:
                raise Cancelled("the stream takes no more input: it was finished or closed")
            self._kept.append(message)
            self._bytes += message.ByteSize()
            if self._bytes > REPLAY_BYTES:
                self.forget()
            self._changed.notify_all()

    async def close(self) -> None:
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    def forget(self) -> None:
        """Keep only what has not been sent: there will be no other attempt."""
        self.replayable = False
        del self._kept[: self._sent - self._first]
        self._first = self._sent

    async def messages(self) -> AsyncIterator[pb.GenerateRequest]:
        """All messages, from the first one, as they come. A second call ends the first one's iterator."""
        async with self._changed:
            self._attempt += 1
            attempt, self._sent = self._attempt, self._first
            self._changed.notify_all()
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._closed or attempt != self._attempt or self._sent < self._end)
                if attempt != self._attempt or self._sent == self._end:
                    return
                message = self._kept[self._sent - self._first]
                self._sent += 1
                if not self.replayable:
                    self.forget()
                self._changed.notify_all()
            yield message

    @property
    def _end(self) -> int:
        return self._first + len(self._kept)


class AsyncStream:
    """Speech as it is made: iterate over it once; each item is a Chunk.

    `header` is there from the first chunk on, `summary` after the last one. Leaving the `async with` block, or
    `aclose()`, cancels what is still under way; inside the block a wait for a chunk may be given up and begun again
    (`asyncio.timeout`), which loses nothing. Raises SpeechError; before the first audio a lost connection, or a
    full server that says when to come back, leads to another attempt.
    """

    def __init__(
        self, connection: Connection, config: pb.GenerateConfig, text: Text | None, *, timeout: float | None
    ) -> None:
        self.request_id = config.request_id
        self.header: Header | None = None
        self.summary: Summary | None = None
        self._connection = connection
        self._text = text
        self._timeout = timeout
        self._outbox = Outbox(pb.GenerateRequest(config=config))
        self._attempts: Attempts | None = None
        self._feeder: asyncio.Task[None] | None = None
        self._call: Any = None
        self._responses: AsyncGenerator[pb.AudioChunk] | None = None
        self._outcome: Outcome | None = None
        self._reading: asyncio.Task[pb.AudioChunk | None] | None = None
        self._entered = False
        self._ended = False

    async def start(self) -> None:
        """Begin to send. Entering `async with` does this, and so does the first chunk asked for."""
        if self._attempts is None and not self._ended:
            self._attempts = self._connection.attempts(self._timeout)
            if self._text is not None:
                self._feeder = asyncio.create_task(self._feed(self._text))
            self._dial(self._attempts)

    async def __aenter__(self) -> Self:
        self._entered = True
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel what is under way and free what the server holds for it. Does no harm when the stream has ended."""
        self._ended = True
        if self._call is not None:
            self._call.cancel()
        await self._outbox.close()
        tasks = [task for task in (self._feeder, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        await self.start()
        while (message := await self._read()) is not None:
            if message.HasField("header"):
                self.header = convert.header(message.header)
            if message.HasField("summary"):
                self.summary = convert.summary(message.summary)
            answers = message.HasField("flush_done") or message.HasField("interrupted")
            if message.audio or answers:
                self._outbox.forget()  # from here on a replay would say or answer something twice
            if message.audio or answers or message.segment_events:
                if self.header is None:
                    raise SpeechError("the server sent audio before its header", request_id=self.request_id)
                return convert.chunk(message, self.header)
        await self.aclose()
        raise StopAsyncIteration

    async def speech(self) -> Speech:
        """All the audio in one piece, and the end of the stream."""
        chunks = [chunk async for chunk in self]
        if self.header is None:
            raise SpeechError("the server ended the stream without a header", request_id=self.request_id)
        return convert.speech(chunks, self.header, self.summary)

    async def _read(self) -> pb.AudioChunk | None:
        """The next message; None at the end."""
        if self._ended:
            return None
        # A task of its own: in grpc.aio, a reader that is cancelled takes the whole call with it.
        reading = self._reading = self._reading or asyncio.create_task(self._receive())
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            if not reading.cancelled():  # only whoever waits for it
                if not self._entered:  # and nobody else will close the stream
                    await self.aclose()
                raise
            self._raise_feeder_error()
            if self._ended:  # by another task
                return None
            raise
        except BaseException:
            await self.aclose()
            raise
        finally:
            if reading.done():
                self._reading = None

    async def _receive(self) -> pb.AudioChunk | None:
        """The next message, over as many attempts as it takes."""
        while True:
            assert self._responses is not None and self._outcome is not None and self._attempts is not None
            try:
                return await anext(self._responses, None)
            except grpc.aio.AioRpcError as error:
                error = await self._outcome.error(error)
                failure = self._connection.failure(error, self._attempts, self.request_id)
            if not self._outbox.replayable:
                raise failure
            await self._attempts.pause(failure)
            self._raise_feeder_error()
            self._dial(self._attempts)

    def _dial(self, attempts: Attempts) -> None:
        self._call = self._connection.stub.Generate(
            self._outbox.messages(), timeout=attempts.remaining(), metadata=self._connection.metadata
        )
        self._outcome = Outcome(self._call)
        self._responses = aiter(self._call)

    async def _feed(self, text: Text) -> None:
        try:
            async with aclosing(pieces(text)) as source:
                async for piece in source:
                    await self._outbox.put(pb.GenerateRequest(text=piece))
            await self._outbox.close()
        except BaseException:
            self._call.cancel()
            raise

    def _raise_feeder_error(self) -> None:
        """The exception of the caller's own text iterator, which ended the call."""
        if self._feeder is not None and self._feeder.done() and not self._feeder.cancelled():
            error = self._feeder.exception()
            if error is not None:
                raise error


class AsyncSession(AsyncStream):
    """A conversation on one stream: send text while you read the audio of what was sent before.

    A sender waits when the connection is far behind, so read in another task:

        async with client.session(voice="ref_...") as session:
            await session.send_text("Hello. ")
            await session.send_text("How are you?")
            await session.finish()
            async for chunk in session:
                play(chunk.samples)
    """

    async def send_text(self, text: str) -> None:
        """Append to the open turn."""
        async for piece in pieces(text):
            await self._outbox.put(pb.GenerateRequest(text=piece))

    async def flush(self, *, end_turn: bool = False, tag: str = "") -> None:
        """Speak what is buffered now; a chunk with `flushed` answers when all of it has been sent."""
        await self._outbox.put(pb.GenerateRequest(flush=pb.Flush(end_turn=end_turn, tag=tag)))

    async def interrupt(self, *, tag: str = "") -> None:
        """Drop the open turn and what is queued behind it; a chunk with `interrupted` answers."""
        await self._outbox.put(pb.GenerateRequest(interrupt=pb.Interrupt(tag=tag)))

    async def finish(self) -> None:
        """No more input: the audio ends when everything has been said."""
        await self._outbox.put(pb.GenerateRequest(finish=pb.Finish()))
        await self._outbox.close()
