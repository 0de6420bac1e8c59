"""Callers with other addresses than this host's usual one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def calling_from(host: str, address: str) -> AsyncIterator[str]:
    """The address of a forwarder, whose connections to the server at `address` come from `host`, such as 127.0.0.2."""
    server_host, _, port = address.rpartition(":")
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, onward = await asyncio.open_connection(server_host, int(port), local_addr=(host, 0))
        for pair in ((reader, onward), (back, writer)):
            task = asyncio.create_task(copy(*pair))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    forwarder = await asyncio.start_server(forward, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{forwarder.sockets[0].getsockname()[1]}"
    finally:
        forwarder.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
