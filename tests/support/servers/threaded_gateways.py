"""HTTP gateways in threads of a test."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from support.servers.waiting import HANG_SECONDS, wait_until

from voxcpm_gateway import serving
from voxcpm_gateway.config import GatewayConfig, ServerConnection

Gateways = Callable[..., AbstractContextManager[str]]


@contextmanager
def gateway(target: str, *, listen: str = "127.0.0.1:0", **settings: Any) -> Iterator[str]:
    """Serve a gateway in a thread. Gives its address, HOST:PORT.

    settings: fields of GatewayConfig
    """
    opened = serving.listening(listen)
    server = serving.server(GatewayConfig(server=ServerConnection(target=target), **settings))

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(server.serve(sockets=[opened]))

    thread = threading.Thread(target=run, name="gateway")
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield serving.address_of(opened)
    finally:
        server.should_exit = True
        thread.join(HANG_SECONDS)
        opened.close()
