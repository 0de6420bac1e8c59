"""The service: a port of Wyoming before one connection to a VoxCPM server."""

# pyright: basic, reportMissingImports=warning
from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable
from operator import itemgetter

from voxcpm_client.client import AsyncClient
from voxcpm_client.errors import SpeechError
from voxcpm_client.values.options import SpeechOptions
from voxcpm_client.wyoming.caller import Caller, Timeouts
from voxcpm_client.wyoming.events import HEADER_BYTES

STOP_SECONDS = 10.0  # seconds for speech in progress when the service ends

log = logging.getLogger("voxcpm_client.wyoming")


class Service:
    """Serves each connection by itself, up to a number of them."""

    def __init__(
        self, client: AsyncClient, speech: SpeechOptions, *, max_connections: int, timeouts: Timeouts | None = None
    ) -> None:
        self._client = client
        self._speech = speech
        self._timeouts = timeouts or Timeouts()
        self._max_connections = max_connections
        self._callers: dict[asyncio.Task[None], Caller] = {}

    async def run(self, opened: socket.socket, *signals: signal.Signals, announce: Callable[[], None]) -> None:
        """Serve on a socket until one of the signals, and for STOP_SECONDS what is spoken then.

        announce: called once the signals have their effect
        """
        ended = asyncio.Event()
        for number in signals:
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        server = await asyncio.start_server(self._connected, sock=opened, limit=HEADER_BYTES)
        warming = asyncio.create_task(self._warm_up())
        announce()
        await ended.wait()
        server.close()
        speaking = [task for task, caller in self._callers.items() if caller.idle_since is None]
        if speaking:
            await asyncio.wait(speaking, timeout=STOP_SECONDS)
        tasks = [warming, *self._callers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _warm_up(self) -> None:
        """Open the connection to the server, and say in the log if there is none."""
        try:
            models = await self._client.list_models()
            log.info("the server has the models %s", ", ".join(model.name for model in models))
        except SpeechError as error:
            log.warning("the server does not answer yet: %s", error)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        caller = Caller(reader, writer, self._client, self._speech, self._timeouts)
        with contextlib.suppress(asyncio.CancelledError):
            if len(self._callers) >= self._max_connections and not self._close_idle():
                text = (
                    f"this service speaks on {self._max_connections} connections, which is its limit; try again later"
                )
                await caller.refuse(text, "TOO_MANY_CONNECTIONS")
                return
            self._callers[task] = caller
            try:
                await caller.run()
            finally:
                self._callers.pop(task, None)

    def _close_idle(self) -> bool:
        """Make room: close the connection that has been idle for longest. False if there is none."""
        idle = [(caller.idle_since, task) for task, caller in self._callers.items() if caller.idle_since is not None]
        if not idle:
            return False
        _, task = min(idle, key=itemgetter(0))
        del self._callers[task]
        task.cancel()
        return True
