"""Generate calls through the stubs of grpc alone, and all that a client learns from one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc


@dataclass
class Heard:
    """The audio and the status of a call."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""
    pushback: str | None = None
    audio: list[np.ndarray] = field(default_factory=list)

    @property
    def waveform(self) -> np.ndarray:
        return np.concatenate([np.zeros(0, np.float32), *self.audio])


async def read(call: Any, heard: Heard, messages: int | None = None) -> list[pb.AudioChunk]:
    """Read up to so many messages, or all, and the status if there are no more."""
    chunks: list[pb.AudioChunk] = []
    try:
        while messages is None or len(chunks) < messages:
            chunk = await call.read()
            if not isinstance(chunk, pb.AudioChunk):
                break
            chunks.append(chunk)
            heard.audio.append(np.frombuffer(chunk.audio, "<f4"))
        else:
            return chunks
    except grpc.aio.AioRpcError:
        pass
    except asyncio.CancelledError:
        if not call.cancelled():
            raise
    heard.code = await call.code()
    heard.details = await call.details() or ""
    trailers: Any = await call.trailing_metadata() or grpc.aio.Metadata()
    heard.pushback = trailers.get("grpc-retry-pushback-ms")
    return chunks


async def opened(
    stub: tts_pb2_grpc.VoxCPMServiceStub, *messages: pb.GenerateRequest, seconds: float = HANG_SECONDS
) -> Any:
    """A Generate call to which these messages were sent, as far as it took them."""
    call: Any = stub.Generate(timeout=seconds)
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for message in messages:
            await call.write(message)
    return call
