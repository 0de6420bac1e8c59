"""The WebSocket `/v1/audio/stream`: text arrives in messages, and audio leaves as it is made.

One socket is one Generate stream of the server. docs/websocket.md describes the messages.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from voxcpm_client import AsyncSession, Cancelled, SpeechError
from voxcpm_gateway.config import GatewayConfig
from voxcpm_gateway.connections.handshake import no_handshake, refusal
from voxcpm_gateway.errors import HttpError, as_http
from voxcpm_gateway.exchange import Exchange, Route
from voxcpm_gateway.requests.callers import caller_client
from voxcpm_gateway.speech import websocket_messages as messages
from voxcpm_gateway.speech.speaking import end
from voxcpm_gateway.speech.websocket_messages import Config, Message
from voxcpm_gateway.state import GatewayState
from voxcpm_grpc.logs import LogLine

PATH = "/v1/audio/stream"
MAX_CONFIG_CHARS = 18 << 20  # characters of two recordings of the server's largest size, 6 MiB, in base64
MAX_MESSAGE_CHARS = 1 << 20
MAX_WAITING_CHARS = 1 << 20  # characters of text that the server has not taken yet
MAX_WAITING_MESSAGES = 4096
CLOSE_BASE = 4000  # a close after an error has this number plus an HTTP status as its code
NORMAL_CLOSE = 1000
SWITCHING_PROTOCOLS = 101  # a socket that opened has this status; an error has its own
log = logging.getLogger("voxcpm_gateway")


def routes(config: GatewayConfig) -> list[BaseRoute]:
    """The WebSocket of the gateway."""

    async def stream(websocket: WebSocket) -> None:
        await websocket.accept()
        await _Socket(websocket, config).run()

    return [WebSocketRoute(PATH, stream), Route(PATH, _refuse, methods=["GET"])]


async def _refuse(request: Request) -> Response:
    """Answer a request of the address that does not open a WebSocket."""
    raise refusal(request.scope) or no_handshake()


class _Socket:
    """One open socket and the Generate stream behind it."""

    def __init__(self, websocket: WebSocket, config: GatewayConfig) -> None:
        self._websocket = websocket
        self._config = config
        self._waiting: deque[Message] = deque()  # the server has not taken them yet
        self._waiting_chars = 0
        self._passing_chars = 0  # characters of the message that the server is taking
        self._arrived = asyncio.Event()
        self._reader = messages.MessageReader()
        self._dropped: deque[list[str]] = deque()  # each open interrupt has the tags of flushes that it dropped here
        self._finished = False
        self._exchange = Exchange.of(websocket.scope)
        self._exchange.route, self._exchange.status = PATH, SWITCHING_PROTOCOLS
        self._metrics = GatewayState.of(websocket).metrics

    async def run(self) -> None:
        """Serve the socket to its end."""
        self._metrics.began()
        try:
            await self._stream(await self._receive_config())
            await self._close(NORMAL_CLOSE)
        except WebSocketDisconnect:
            pass
        except Exception as error:
            found = as_http(error, self._exchange)
            if not isinstance(error, HttpError | SpeechError):
                log.exception("websocket id=%s failed", self._exchange.request_id)
            self._exchange.code, self._exchange.status = found.code or "", found.status
            await self._fail(found)
            del found  # an exception in it may refer to this frame
        finally:
            self._metrics.ended(self._exchange)
            self._log()

    async def _receive_config(self) -> Config:
        """The first message. No more of it is parsed than shows its key, before the server has accepted the caller."""
        try:
            async with asyncio.timeout(self._config.read_seconds):
                text = await self._receive_text(MAX_CONFIG_CHARS)
        except TimeoutError:
            seconds = self._config.read_seconds
            raise HttpError(408, f"no config arrived within {seconds:g} s; send it as the first message") from None
        await GatewayState.of(self._websocket).check_caller(self._websocket, messages.key_of(text))
        (message,) = self._reader.read(text)
        self._exchange.names = partial(messages.names, tuple(message.fields))
        return await messages.config(message)

    async def _stream(self, config: Config) -> None:
        state, client = GatewayState.of(self._websocket), caller_client(self._websocket, config.key)
        options = {"timeout": None, "request_id": self._exchange.request_id, **config.options}
        if (name := options.get("voice", "")) in state.voices:
            needed, model = state.voices.needs_presets(name), options.get("model") or ""
            presets = (await state.model_info(client, model)).presets if needed else ()
            options["voice"] = state.voices.resolve(name, presets) or ()
        session = client.session(**options)
        self._exchange.request_id = session.request_id
        async with session:
            tasks = [
                asyncio.create_task(work)
                for work in (self._read(session), self._pass_on(session), self._send_audio(session))
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end(tasks)
                del tasks  # their exceptions refer to this frame
            while done:
                done.pop().result()

    # ---- from the caller

    async def _receive(self, most: int) -> list[Message]:
        return self._reader.read(await self._receive_text(most))

    async def _receive_text(self, most: int) -> str:
        event = await self._websocket.receive()
        if event["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(event.get("code", 1005))
        text: str | None = event.get("text")
        if text is None:
            raise HttpError(400, "the message is binary; messages to the gateway are text with JSON")
        if len(text) > most:
            raise HttpError(413, f"the message has {len(text)} characters; the limit is {most}")
        return text

    async def _read(self, session: AsyncSession) -> None:
        """Handle the messages of the caller. Interrupts overtake text that waits, so nothing here waits for room."""
        while True:
            for message in await self._receive(MAX_MESSAGE_CHARS):
                await self._handle(session, message)

    async def _handle(self, session: AsyncSession, message: Message) -> None:
        if message.type == "config":
            raise HttpError(400, "a config was sent already; send it only once, as the first message", param="type")
        if self._finished:
            raise HttpError(400, f"a {message.type} follows finish; no message may", param="type")
        if message.type == "interrupt":
            self._drop_text()
            with suppress(Cancelled):  # the stream has ended; its summary or its error is on the way
                await session.interrupt(**message.fields)
            return
        self._finished = message.type == "finish"
        self._put(message)

    def _put(self, message: Message) -> None:
        self._waiting_chars += message.chars
        waiting = self._waiting_chars + self._passing_chars
        if waiting > MAX_WAITING_CHARS or len(self._waiting) >= MAX_WAITING_MESSAGES:
            raise HttpError(
                413,
                f"{waiting} characters in {len(self._waiting) + 1} messages wait to be spoken; the limits "
                f"are {MAX_WAITING_CHARS} and {MAX_WAITING_MESSAGES}: send text more slowly",
                param="text",
            )
        self._waiting.append(message)
        self._arrived.set()

    def _drop_text(self) -> None:
        """Forget the text that waits here. Settings of later turns stay."""
        self._dropped.append([one.fields.get("tag", "") for one in self._waiting if one.type == "flush"])
        self._waiting = deque(one for one in self._waiting if one.type == "turn")
        self._waiting_chars = 0

    async def _pass_on(self, session: AsyncSession) -> None:
        """Pass messages on to the server, as it takes them. Never returns."""
        try:
            while True:
                while not self._waiting:
                    self._arrived.clear()
                    await self._arrived.wait()
                message = self._waiting.popleft()
                self._waiting_chars -= message.chars
                self._passing_chars = message.chars
                await self._pass_one(session, message)
                self._passing_chars = 0
        except Cancelled:  # the stream has ended; its summary or its error is on the way
            await asyncio.Event().wait()

    async def _pass_one(self, session: AsyncSession, message: Message) -> None:
        match message.type:
            case "text":
                await session.send_text(message.fields["text"])
            case "flush":
                await session.flush(**message.fields)
            case "pause":
                await session.pause(message.fields["milliseconds"] / 1000)
            case "turn":
                await session.set_turn(**message.fields)
            case _:
                await session.finish()

    # ---- to the caller

    async def _send_audio(self, session: AsyncSession) -> None:
        """Send audio and events until the stream ends. The next chunk is read when the caller has taken this one."""
        has_header, warned = False, 0
        async for chunk in session:
            if session.header is not None and not has_header:
                has_header = True
                await self._send(messages.header(session.header))
            for one in session.warnings[warned:]:
                await self._send(messages.warning(one))
            warned = len(session.warnings)
            after = [event for event in chunk.events if event.at_samples > chunk.offset]
            for event in chunk.events:
                if event not in after:
                    await self._send(messages.segment(event))
            if chunk.audio:
                await self._send(chunk.audio)
                if self._exchange.first_audio_seconds is None:
                    self._exchange.first_audio_seconds = self._exchange.seconds
            for event in after:
                await self._send(messages.segment(event))
            if chunk.words:
                await self._send(messages.words(chunk.words))
            dropped = self._dropped.popleft() if chunk.interrupted is not None and self._dropped else ()
            for answer in messages.answers(chunk, dropped):
                await self._send(answer)
        if session.header is not None and not has_header:
            await self._send(messages.header(session.header))
        for one in session.warnings[warned:]:
            await self._send(messages.warning(one))
        if session.summary is not None:
            await self._send(messages.summary(session.summary))

    async def _send(self, message: dict[str, Any] | bytes) -> None:
        """Send one message. A caller that does not read it for too long has gone."""
        try:
            async with asyncio.timeout(self._config.write_seconds):
                if isinstance(message, bytes):
                    await self._websocket.send_bytes(message)
                    self._exchange.sent_bytes += len(message)
                else:
                    await self._websocket.send_text(json.dumps(message, ensure_ascii=False, allow_nan=False))
        except TimeoutError:
            self._exchange.code = "unread"
            raise WebSocketDisconnect(1006) from None

    async def _fail(self, error: HttpError) -> None:
        with suppress(WebSocketDisconnect):
            await self._send(messages.error(error, self._exchange.request_id))
        await self._close(CLOSE_BASE + error.status, error.message)

    async def _close(self, code: int, reason: str = "") -> None:
        if self._websocket.application_state is WebSocketState.CONNECTED:
            shown = reason.encode()[:120].decode(errors="ignore")  # a control frame has room for 123 bytes
            with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
                async with asyncio.timeout(self._config.write_seconds):
                    await self._websocket.close(code, shown)

    def _log(self) -> None:
        """Write one line of the log, without text of the caller."""
        client, exchange = self._websocket.client, self._exchange
        log.info(
            LogLine(
                "websocket",
                request_id=exchange.request_id,
                code=exchange.code,
                peer=client.host if client else "",
                sent_bytes=exchange.sent_bytes,
                first_audio_seconds=exchange.first_audio_seconds,
                seconds=exchange.seconds,
            )
        )
