"""A program that forks many times, each time right after it has closed a client:

python forks_after_close.py TARGET

It prints the names of the threads of gRPC that ran at one of the forks.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

ROUNDS = 10
GRPC = ("grpc", "event_engine", "lifeguard")  # beginnings of the names of its threads
running: set[str] = set()


def look() -> None:
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            name = (task / "comm").read_text().strip()
            if name.startswith(GRPC):
                running.add(name)


def main(target: str) -> None:
    os.register_at_fork(before=look)  # runs after that of the client, because it is registered first
    forking = import_module("forking")
    for state in forking.CLOSED * ROUNDS:
        before = forking.Before(target, state)
        if not (pid := os.fork()):
            os._exit(0)
        os.waitpid(pid, 0)
        if before.loop is not None:
            before.loop.close()
    print("threads:", *sorted(running))


if __name__ == "__main__":
    main(*sys.argv[1:])
