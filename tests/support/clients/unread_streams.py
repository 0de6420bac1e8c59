"""Generate streams whose audio is read when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from google.protobuf.duration_pb2 import Duration
from support.clients.grpc_types import EOF
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

TEXT = "A sentence that takes its time to be spoken, as it is long, and longer than anyone would want to listen."
STEPS = 40  # more audio than the window and the buffers of a connection
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536))
"""Options of a channel that takes little of what nobody reads."""
CLOSE = pb.Pacing(max_lead=Duration(nanos=400_000_000))
"""The pacing of a stream of which little is made ahead of its reader."""


class Listener:
    """A stream of `steps` steps of audio, and what its client has read of it."""

    def __init__(self, stub: tts_pb2_grpc.VoxCPMServiceStub, seed: int, steps: int = STEPS) -> None:
        sampling = pb.Sampling(seed=seed, inference_timesteps=4, min_steps=steps, max_steps=steps)
        turn = pb.TurnConfig(sampling=sampling)
        self._about = f"the stream of seed {seed} and {steps} steps"
        self._config = pb.GenerateConfig(turn=turn, pacing=pb.Pacing(max_lead=Duration(seconds=1)))
        self._call = stub.Generate(self._messages())
        self._parts: list[bytes] = []

    async def _messages(self) -> AsyncIterator[pb.GenerateRequest]:
        yield pb.GenerateRequest(config=self._config)
        yield pb.GenerateRequest(text=TEXT)

    async def first_audio(self) -> None:
        while not any(self._parts):
            chunk = await self._read()
            assert chunk is not EOF, f"{self._about} ended without audio"
            self._parts.append(chunk.audio)

    async def rest(self) -> np.ndarray:
        """All samples, once the stream has ended."""
        while (chunk := await self._read()) is not EOF:
            self._parts.append(chunk.audio)
        return np.frombuffer(b"".join(self._parts), np.int16)

    async def _read(self) -> Any:
        """The next message, or EOF. One that never comes fails with the place at which the stream stopped."""
        try:
            async with asyncio.timeout(HANG_SECONDS):
                return await self._call.read()
        except TimeoutError:
            received = sum(map(len, self._parts))
            raise AssertionError(f"{self._about} stopped after {received} bytes of audio") from None
