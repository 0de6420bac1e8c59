"""Responses with speech: the audio of a stream as it is made, as a whole, or as server-sent events."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Literal, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from voxcpm_client import AsyncStream, Chunk, SpeechError, WordTime
from voxcpm_gateway.errors import HttpError, as_http
from voxcpm_gateway.exchange import Exchange
from voxcpm_gateway.requests.bodies import ClientGone

log = logging.getLogger("voxcpm_gateway")

Form = Literal["audio", "sse", "blocking"]
SILENT = "the text has nothing to speak: it has neither letters nor digits"
CLIENT_CLOSED = 499  # the log and the metrics have it; nobody receives it
T = TypeVar("T")


class SpokenResponse(Response):
    """A response with the audio of a stream.

    The status is sent with the first audio, so that an error before it has a status of its own. The stream is cancelled
    as soon as the client goes away. A stream that fails after its first audio ends the connection without the end of
    the body, so that the client sees an error; server-sent events have an event for it.

    media_type: of the audio
    form: audio as it is made, in events (sse), or all at the end (blocking)
    headers: of the response; called with the stream when its first audio is there
    """

    def __init__(
        self,
        stream: AsyncStream,
        *,
        media_type: str,
        form: Form,
        headers: Callable[[AsyncStream], Mapping[str, str]] = lambda stream: {},
    ) -> None:
        super().__init__()
        self._stream = stream
        self._form = form
        self._type = "text/event-stream" if form == "sse" else media_type
        self._more_headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange.of(scope)
        try:
            await while_connected(receive, self._speak(exchange, send))
        except ClientGone:
            exchange.code = "client_gone"
            if not exchange.status:
                exchange.status = CLIENT_CLOSED

    async def _speak(self, exchange: Exchange, send: Send) -> None:
        async with self._stream as stream:
            chunks = aiter(_with_content(stream))
            first = await anext(chunks, None)
            if first is not None:
                exchange.first_audio_seconds = exchange.seconds
            elif not _is_silent(stream):
                raise HttpError(400, SILENT, param=exchange.names().get("text"))
            audio = first.audio if first else b""
            if self._form == "blocking":
                parts = [audio]
                async for chunk in chunks:
                    parts.append(chunk.audio)
                body = b"".join(parts)
                await self._start(send, {"content-length": str(len(body))})
                await send({"type": "http.response.body", "body": body})
                return
            await self._start(send, {})
            try:
                if first is not None:
                    await self._send(send, first)
                async for chunk in chunks:
                    await self._send(send, chunk)
            except SpeechError as error:
                await self._fail(exchange, send, error)
                return
            last = self._done(stream) if self._form == "sse" else b""
            await send({"type": "http.response.body", "body": last})

    async def _start(self, send: Send, headers: Mapping[str, str]) -> None:
        more = {**headers, **self._more_headers(self._stream)}
        pairs = {"content-type": self._type, "cache-control": "no-store"} | more
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in pairs.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _send(self, send: Send, chunk: Chunk) -> None:
        if self._form == "sse":
            body = event("speech.audio.delta", audio=base64.b64encode(chunk.audio).decode()) if chunk.audio else b""
            if chunk.words:
                body += event("speech.audio.words", words=_words(chunk.words, chunk.sample_rate))
        else:
            body = chunk.audio
        if body:
            await send({"type": "http.response.body", "body": body, "more_body": True})

    def _done(self, stream: AsyncStream) -> bytes:
        """The last event. Tokens are characters of the text, and steps of the model."""
        read = stream.summary.input_chars if stream.summary else 0
        made = stream.summary.generated_steps if stream.summary else 0
        usage = {"input_tokens": read, "output_tokens": made, "total_tokens": read + made}
        words: dict[str, Any] = {}
        if stream.summary and stream.header and stream.summary.words:
            words = {"words": _words(stream.summary.words, stream.header.sample_rate)}
        return event("speech.audio.done", usage=usage, **words)

    async def _fail(self, exchange: Exchange, send: Send, failure: SpeechError) -> None:
        error = as_http(failure, exchange)
        exchange.code = error.code or "error"
        log.warning("stream id=%s ended after its first audio: %s", exchange.request_id, failure.code)
        if self._form == "sse":
            await send({"type": "http.response.body", "body": event("speech.audio.error", error=error.error)})


def _is_silent(stream: AsyncStream) -> bool:
    """True if a stream has ended well and nothing of its text is spoken, such as a block of code."""
    return stream.summary is not None and stream.summary.finish_reason == "nothing_to_say"


async def _with_content(stream: AsyncStream) -> AsyncGenerator[Chunk]:
    """The chunks that have audio or words."""
    async for chunk in stream:
        if chunk.audio or chunk.words:
            yield chunk


def _words(words: Iterable[WordTime], rate: int) -> list[dict[str, Any]]:
    """The times of words, as OpenAI's API writes those of a transcription, with their places in the input."""
    return [
        {
            "word": one.text,
            "start": round(one.start_samples / rate, 4),
            "end": round(one.end_samples / rate, 4),
            "input_start": one.input_start,
            "input_end": one.input_end,
            "estimated": one.estimated,
        }
        for one in words
    ]


def event(kind: str, **fields: Any) -> bytes:
    """A server-sent event as OpenAI's API writes it."""
    return f"data: {json.dumps({'type': kind, **fields})}\n\n".encode()


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client closes the connection. Raises ClientGone then."""
    working = asyncio.create_task(work)  # it resumes without the layers of the application around it
    watching = asyncio.create_task(_cancel_when_gone(receive, working))
    try:
        return await working
    except BaseException:  # the work may end with another error than its cancellation
        if watching.done() and working.cancelling() and not _is_cancelled():
            raise ClientGone from None
        raise
    finally:
        watching.cancel()
        del working, watching  # the exception of the work refers to this frame, and the watch to the work


def _is_cancelled() -> bool:
    """True if the current task is to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _cancel_when_gone(receive: Receive, working: asyncio.Task[Any]) -> None:
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:  # also if nothing can be received any more
        working.cancel()


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
