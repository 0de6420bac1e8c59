"""A gateway in this process, before a front over the fake pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_gateway import serving
from voxcpm_gateway.config import GatewayConfig, ServerConnection


@dataclass
class Gateway:
    """A running gateway, and a client of it."""

    http: httpx2.AsyncClient
    address: tuple[str, int]
    state: Any

    async def speak(self, text: str = "Hello.", **fields: Any) -> httpx2.Response:
        return await self.http.post("/v1/audio/speech", json={"input": text, "model": "tts-1", **fields})


ServeGateway = Callable[..., AbstractAsyncContextManager[Gateway]]


@asynccontextmanager
async def running_gateway(
    target: str, *, server: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Gateway]:
    opened = serving.listening("127.0.0.1:0")
    config = GatewayConfig(server=ServerConnection(target=target, **(server or {})), **options)
    running = serving.server(config)
    app: Any = running.config.app
    task = asyncio.create_task(running.serve(sockets=[opened]))
    await until(lambda: running.started)
    host, port = opened.getsockname()
    try:
        plain: Any = {"trust_env": False, "verify": False}  # to read the certificates of this host takes 20 ms
        async with httpx2.AsyncClient(base_url=f"http://{host}:{port}", timeout=HANG_SECONDS, **plain) as http:
            yield Gateway(http, (host, port), app.state)
    finally:
        running.should_exit = True
        await task
        opened.close()


@pytest.fixture
def serve_gateway() -> ServeGateway:
    """`async with serve_gateway(target, **config) as gateway`; `server` has fields of ServerConnection."""
    return running_gateway


@pytest.fixture
async def gateway(served: Any) -> AsyncIterator[Gateway]:
    async with running_gateway(served.address) as found:
        yield found
