"""What an operator's signals mean to the process that they reach."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from voxcpm_grpc.errors import StartupError


class Signals:
    """From its making on, SIGTERM and SIGINT end the current task: at once while it starts, gently once it waits here.

    A signal after that does not wait for open streams either.
    """

    def __init__(self) -> None:
        self._main = asyncio.current_task()
        self._stop = asyncio.Event()
        self._waits = False
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    async def wait(self, hopeless: Coroutine[Any, Any, object]) -> None:
        """Returns when a signal comes. Raises StartupError when `hopeless` returns, as there is no engine any more."""
        self._waits = True
        watch, stop = asyncio.create_task(hopeless), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((watch, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            stop.cancel()
        if not self._stop.is_set():
            raise StartupError("no engine is left and none could be started again; the log says why")

    def _on_signal(self) -> None:
        if self._stop.is_set() or not self._waits:
            assert self._main is not None
            self._main.cancel()
        self._stop.set()
