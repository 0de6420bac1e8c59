"""A program that forks, with a client before the fork and one after it:

python forking.py TARGET BEFORE AFTER WAY

It prints the result of the child, its exit status, and the result of the parent's client after the fork.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from voxcpm_client import AsyncClient, Client, SpeechError
from voxcpm_grpc.audio import wav_bytes

CLOSED = ("closed", "stream closed", "async closed", "closed after errors")
BEFORE = ("nothing", "made", "used", "async used", *CLOSED, "other library")
AFTER = ("new", "new async", "inherited", "close")
WAYS = ("fork", "multiprocessing", "thread")
TIMEOUT = 60.0
NOBODY = "127.0.0.1:1"
RECORDING = wav_bytes(np.zeros(16000, np.float32), 16000)
FAILING: tuple[Callable[[Client], object], ...] = (
    lambda client: client.health(),
    lambda client: client.model_info(),
    lambda client: client.server_stats(),
    lambda client: client.say("Hello."),
    lambda client: client.add_reference(RECORDING),
    lambda client: client.encode_latents(RECORDING, role="prompt"),
)


class Before:
    """The client of the parent, in a state of BEFORE."""

    def __init__(self, target: str, state: str) -> None:
        self.client: Any = None
        self.loop: Any = asyncio.new_event_loop() if state.startswith("async") else None
        self.held: Any = None
        if state in ("made", "used", "closed", "stream closed"):
            self.client = Client(target, timeout=TIMEOUT)
        if state in ("used", "closed"):
            self.client.health()
        if state == "stream closed":
            self.held = self.client.speak(["One. ", "Two. "])
            next(self.held)
        if state.startswith("async"):
            self.client = AsyncClient(target, timeout=TIMEOUT)
            self.loop.run_until_complete(self.client.health())
        if state in ("closed", "stream closed"):
            self.client.close()
        if state == "async closed":
            self.loop.run_until_complete(self.client.aclose())
        if state == "closed after errors":
            self.client = Client(NOBODY, retries=0, timeout=TIMEOUT)
            self.held = [failure(call, self.client) for call in FAILING]
            self.client.close()
        if state == "other library":
            import grpc

            self.held = grpc.insecure_channel(target)
            self.held.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=TIMEOUT)

    def call(self) -> str:
        """Call the server with the client, if it is still of use."""
        return self._told(lambda: self.client.health())

    def close(self) -> str:
        return self._told(self.client.aclose if isinstance(self.client, AsyncClient) else self.client.close)

    def _told(self, call: Any) -> str:
        if isinstance(self.client, AsyncClient):
            return told(lambda: self.loop.run_until_complete(call()))
        return told(call)


def failure(call: Callable[[Client], object], client: Client) -> SpeechError:
    """The error of a call, with its traceback."""
    try:
        raise AssertionError(call(client))
    except SpeechError as error:
        return error


def told(call: Any) -> str:
    """The result of a call in one line."""
    try:
        return str(call())
    except SpeechError as error:
        return f"{type(error).__name__}: {error}"


def new(target: str) -> str:
    with Client(target, timeout=TIMEOUT) as client:
        return str(client.say("Hello.").sample_count > 0)


async def new_async(target: str) -> str:
    async with AsyncClient(target, timeout=TIMEOUT) as client:
        return str((await client.say("Hello.")).sample_count > 0)


def child(target: str, after: str, before: Any) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "new": lambda: new(target),
        "new async": lambda: asyncio.run(new_async(target)),
        "inherited": lambda: before.call(),
        "close": lambda: before.close(),
    }
    print("child:", told(calls[after]), flush=True)


def fork(target: str, after: str, before: Before, by: Callable[[], int] = os.fork) -> int:
    in_main = threading.current_thread() is threading.main_thread() and by is os.fork
    if not (pid := by()):
        child(target, after, before)
        if in_main and before.loop is None:
            sys.exit(0)  # with all destructors, of which that of an event loop is not made for children
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def unseen(target: str, after: str, before: Before) -> int:
    """A child for which Python's hooks for forks do not run, as under uWSGI."""
    return fork(target, after, before, by=ctypes.PyDLL(None).fork)


def spawn(target: str, after: str, before: Before) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=child, args=(target, after, before))
    process.start()
    process.join()
    return process.exitcode


def by_server(target: str, after: str, before: Before) -> int | None:
    """A process that a server of multiprocessing forks, which itself has no client."""
    process = multiprocessing.get_context("forkserver").Process(target=child, args=(target, after, None))
    process.start()
    process.join()
    return process.exitcode


def in_thread(target: str, after: str, before: Before) -> int | None:
    statuses: list[int | None] = []
    thread = threading.Thread(target=lambda: statuses.append(fork(target, after, before)))
    thread.start()
    thread.join()
    return statuses[0]


def main(target: str, state: str, after: str, way: str) -> None:
    before = Before(target, state)
    ways = {"fork": fork, "unseen": unseen, "multiprocessing": spawn, "thread": in_thread, "fork server": by_server}
    print("status:", ways[way](target, after, before), flush=True)
    if "used" in state or state == "made":
        print("parent:", before.call(), flush=True)
    if before.loop is not None:
        before.loop.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
