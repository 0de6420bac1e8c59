"""Servers in a thread of a test, whose speech arrives at a chosen pace."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from support.doubles.pools import patient
from support.servers.ports import free_port
from support.servers.waiting import HANG_SECONDS

from benchmarks.front.paced_engine import INFO, MakePaced
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.local import EngineProcess, LocalEngines
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_server.app import running_server

STEP_AUDIO_SECONDS = INFO.step_seconds
SPEAKS = ("en",)


@dataclass
class PacedServer:
    """A server that can be stopped and started again at the same address.

    pace: seconds of speech that arrive in a second
    """

    folder: Path
    pace: float
    port: int = field(default_factory=free_port)
    _stop: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
    _thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), name="paced server")
        self._thread.start()
        assert started.wait(HANG_SECONDS)

    def stop(self) -> None:
        if self._stop is not None:
            loop, stop = self._stop
            loop.call_soon_threadsafe(stop.set)
        if self._thread is not None:
            self._thread.join(HANG_SECONDS)
        self._stop = self._thread = None

    async def _serve(self, started: threading.Event) -> None:
        make = MakePaced(STEP_AUDIO_SECONDS / self.pace, replace(INFO, languages=SPEAKS))
        settings = Settings(
            listen=self.address,
            decode_workers=1,
            drain_seconds=0.0,
            drain_delay_seconds=0.0,
            voices=VoiceSettings(url=str(self.folder)),
        )
        pool = EnginePool(LocalEngines({"engine": lambda: EngineProcess(make)}, patient()))
        async with running_server(settings, pool=pool):
            self._stop = asyncio.get_running_loop(), asyncio.Event()
            started.set()
            await self._stop[1].wait()


@contextmanager
def paced_server(folder: Path, pace: float) -> Iterator[PacedServer]:
    """A server whose engine makes `pace` seconds of speech in a second, until the end of the block."""
    server = PacedServer(folder, pace)
    server.start()
    try:
        yield server
    finally:
        server.stop()
