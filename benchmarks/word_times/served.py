"""A server in this process whose engine speaks with Flite."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.word_times.engine import MakeFlite
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.local import EngineProcess, LocalEngines
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.text import TextSettings, WordSettings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_server.app import running_server


@asynccontextmanager
async def served(aligners: Sequence[str], pace: float) -> AsyncIterator[str]:
    """The address of the server, until the end of the block.

    pace: seconds of speech that its engine makes in a second
    """
    with tempfile.TemporaryDirectory() as voices:
        settings = Settings(
            listen="127.0.0.1:0",
            decode_workers=1,
            drain_delay_seconds=0,
            drain_seconds=1,
            log_level="warning",
            text=TextSettings(start_normalizer=False),
            voices=VoiceSettings(url=voices),
            words=WordSettings(aligners=tuple(aligners), start_aligners=True),
        )
        pool = EnginePool(LocalEngines({"engine": lambda: EngineProcess(MakeFlite(pace))}))
        async with running_server(settings, pool=pool) as server:
            yield server.address
