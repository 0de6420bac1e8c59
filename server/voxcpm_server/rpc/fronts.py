"""The other fronts of a host, as the services of one front see them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol


class Fronts(Protocol):
    """The connection of a front to the others. `name` is its own, such as `front 0`."""

    name: str

    def answer(self, topic: str, function: Callable[[], Awaitable[bytes]]) -> None:
        """Answer the questions of others about a topic with this function from now on."""

    async def ask_others(self, topic: str) -> Mapping[str, bytes]:
        """The answers of the other fronts by their names. Those that do not answer within a moment are left out."""
        ...

    def receive(self, topic: str, handler: Callable[[bytes], None]) -> None:
        """Handle what others send about a topic with this function from now on."""

    def send_others(self, topic: str, body: bytes) -> None:
        """Send a body to the other fronts that are ready; never waits."""
