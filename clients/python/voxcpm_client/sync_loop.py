"""The event loop of a blocking client."""

from __future__ import annotations

from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from voxcpm_client.errors import UnusableClient
from voxcpm_grpc.loop_thread import LoopError, LoopThread

T = TypeVar("T")


class ClientLoop(LoopThread):
    """A thread that runs the calls of a blocking client."""

    def __init__(self) -> None:
        super().__init__("client")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. Raises UnusableClient if it cannot run here, or if the client was
        closed meanwhile."""
        try:
            return super().run(coroutine)
        except LoopError as error:
            raise UnusableClient(str(error)) from None
        except CancelledError:
            if self.stopped:
                raise UnusableClient("the client was closed during this call") from None
            raise
