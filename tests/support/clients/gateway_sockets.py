"""Sockets of the gateway: messages that are sent, and all that comes back until the close."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from support.servers.waiting import HANG_SECONDS
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed


@dataclass(frozen=True)
class Answers:
    """All that a socket has received.

    code: of the close; 1006 for none
    """

    code: int
    reason: str
    events: list[dict[str, Any]]
    audio: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error of the stream; empty for none."""
        return next((event["error"] for event in self.events if event["type"] == "error"), {})

    def of(self, type: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == type]


async def answers(address: str, messages: Iterable[str | dict[str, Any]]) -> Answers:
    """The answers of the gateway at HOST:PORT to messages, of which the last one ends the stream."""
    events: list[dict[str, Any]] = []
    audio = bytearray()
    async with asyncio.timeout(HANG_SECONDS), connect(f"ws://{address}/v1/audio/stream", max_size=None) as socket:
        try:
            for message in messages:
                await socket.send(message if isinstance(message, str) else json.dumps(message))
            while True:
                event = await socket.recv()
                if isinstance(event, bytes):
                    audio += event
                else:
                    events.append(json.loads(event))
        except ConnectionClosed as closed:
            code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
            return Answers(code, reason, events, bytes(audio))
