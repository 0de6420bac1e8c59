"""A server under test at any address, called through the generated stubs alone."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from support.clients.status_details import Details, details_of
from support.servers.running import Server
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

RUN_LABEL = "conformance"
ALONE = ("grpc.use_local_subchannel_pool", 1)  # a channel with it has a connection of its own


@dataclass(frozen=True)
class Target:
    """An address, and what a client needs to call it. `server` is the process, if the tests have started it."""

    address: str
    ca: Path | None = None
    api_key: str = ""
    admin: str = ""
    server: Server | None = None
    options: Sequence[tuple[str, Any]] = ()
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()

    @asynccontextmanager
    async def channel(self, *options: tuple[str, Any], address: str = "") -> AsyncIterator[grpc.aio.Channel]:
        """A connection of its own, to the server or to another address of it."""
        every, to = [ALONE, *self.options, *options], address or self.address
        if self.ca is None:
            made = grpc.aio.insecure_channel(to, every)
        else:
            made = grpc.aio.secure_channel(to, grpc.ssl_channel_credentials(self.ca.read_bytes()), every)
        async with made as channel:
            yield channel

    @asynccontextmanager
    async def service(self, *options: tuple[str, Any]) -> AsyncIterator[Service]:
        """The methods of VoxCPMService over a connection of its own."""
        async with self.channel(*options) as channel:
            yield Service(channel, self.metadata)

    def connect(self) -> socket.socket:
        """A connection of bytes, encrypted if the server is."""
        host, port = self.address.rsplit(":", 1)
        plain = socket.create_connection((host.strip("[]"), int(port)), timeout=HANG_SECONDS)
        if self.ca is None:
            return plain
        context = ssl.create_default_context(cafile=str(self.ca))
        context.set_alpn_protocols(["h2"])
        return context.wrap_socket(plain, server_hostname=host)

    def options_of_voice(self, **fields: Any) -> pb.VoiceOptions:
        """Options of a voice, with a label by which the tests find and delete it at their end."""
        return pb.VoiceOptions(labels={RUN_LABEL: self.run, **fields.pop("labels", {})}, **fields)

    def calls(self, method: str) -> int:
        """The number of calls of a method that have ended; 0 of a server that the tests have not started."""
        return self.server.calls(method) if self.server is not None else 0

    async def ended(self, method: str, count: int) -> None:
        """Return when this many calls have ended. Nothing is known of a server that the tests have not started."""
        if self.server is not None:
            await until(lambda: self.calls(method) >= count)


class Service:
    """The methods of VoxCPMService, with the credential of the caller and a timeout."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Sequence[tuple[str, str]] = ()) -> None:
        self.channel = channel
        self.metadata = tuple(metadata)
        self._stub = tts_pb2_grpc.VoxCPMServiceStub(channel)

    def __getattr__(self, method: str) -> Any:
        """A method; `timeout` can be given to its calls."""
        return functools.partial(getattr(self._stub, method), metadata=self.metadata, timeout=HANG_SECONDS)

    async def stream(
        self, method: str, messages: Iterable[Any], *, seconds: float | None = HANG_SECONDS
    ) -> list[pb.AudioChunk]:
        """All replies to these messages, after which the client half-closes. Raises AioRpcError."""
        return [chunk async for chunk in getattr(self, method)(iter(list(messages)), timeout=seconds)]

    async def speak(self, *messages: Any, seconds: float | None = HANG_SECONDS) -> list[pb.AudioChunk]:
        """All replies of a Generate call to configs, texts, flushes and so on. Raises AioRpcError."""
        return await self.stream("Generate", map(message, messages), seconds=seconds)


def message(body: Any) -> pb.GenerateRequest:
    """The message of a Generate stream with this text, config, turn, flush, interrupt, pause or finish."""
    names = {
        str: "text",
        pb.GenerateConfig: "config",
        pb.TurnConfig: "turn",
        pb.Flush: "flush",
        pb.Interrupt: "interrupt",
        pb.Pause: "pause",
    }
    if isinstance(body, pb.GenerateRequest):
        return body
    return pb.GenerateRequest(**{names.get(type(body), "finish"): body})


def config(steps: int = 4, *, timesteps: int = 0, seed: int = 7, **fields: Any) -> pb.GenerateConfig:
    """A config whose segments have this number of steps, if the model's own limit allows it."""
    sampling = pb.Sampling(seed=seed, max_steps=steps, min_steps=max(0, steps - 2))
    if timesteps:
        sampling.inference_timesteps = timesteps
    return pb.GenerateConfig(turn=pb.TurnConfig(sampling=sampling), **fields)


async def refusal(call: Any) -> tuple[grpc.StatusCode, str, Details]:
    """Code, message and details of the status of a call that fails. `call` is awaitable, or iterates over replies."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or "", details_of(error)
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        return grpc.StatusCode.CANCELLED, "", Details()
    raise AssertionError("the call ended with OK")


async def rest(call: Any) -> list[pb.AudioChunk]:
    """The replies of a call that `read` has not returned yet. Raises AioRpcError if it does not end with OK."""
    chunks: list[pb.AudioChunk] = []
    while isinstance(chunk := await call.read(), pb.AudioChunk):
        chunks.append(chunk)
    return chunks
