"""Wyoming services in processes of their own, and callers with the published client."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from support.servers.waiting import HANG_SECONDS
from wyoming.client import AsyncTcpClient
from wyoming.event import Event, Eventable


@dataclass(frozen=True)
class Service:
    """A service that listens, and its log."""

    port: int
    process: subprocess.Popen[str]
    output: IO[str]

    @property
    def log(self) -> str:
        return Path(self.output.name).read_text(encoding="utf-8")

    @asynccontextmanager
    async def caller(self) -> AsyncIterator[AsyncTcpClient]:
        async with AsyncTcpClient("127.0.0.1", self.port, read_timeout=HANG_SECONDS) as client:
            yield client


@contextmanager
def wyoming_service(target: str, *flags: str) -> Iterator[Service]:
    """A service before the server at `target`, on a free port, until the end of the block."""
    command = [sys.executable, "-m", "voxcpm_client", "wyoming", "--listen", "127.0.0.1:0", "--target", target, *flags]
    with tempfile.NamedTemporaryFile("w+", prefix="voxcpm-wyoming-", suffix=".log") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            found = re.match(r"listening on tcp://\S+:(\d+) ", process.stdout.readline())
            assert found, Path(log.name).read_text(encoding="utf-8")
            yield Service(int(found[1]), process, log)
        finally:
            process.terminate()
            process.communicate(timeout=HANG_SECONDS)


async def send(client: AsyncTcpClient, *messages: Eventable | Event) -> None:
    for message in messages:
        await client.write_event(message if isinstance(message, Event) else message.event())


async def received(client: AsyncTcpClient, *last: str) -> list[Event]:
    """The events up to one of the kind `last`, or up to the end of the connection."""
    events: list[Event] = []
    while not events or events[-1].type not in last:
        event = await client.read_event()
        if event is None:
            break
        events.append(event)
    return events


def audio_of(events: list[Event]) -> bytes:
    return b"".join(event.payload or b"" for event in events if event.type == "audio-chunk")


def kinds_of(events: list[Event]) -> list[str]:
    """The kinds of events, those of the same kind in a row once."""
    kinds = [event.type for event in events]
    return [kind for place, kind in enumerate(kinds) if kind not in kinds[place - 1 : place]]
