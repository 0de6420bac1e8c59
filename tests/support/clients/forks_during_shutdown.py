"""A program that forks while a thread named as gRPC's starts another one and ends, as after the last channel:

python forks_during_shutdown.py TARGET

The first thread does so after the client has listed the threads and before it reads that thread's name. The program
prints the names of the threads of gRPC that ran at the fork.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

LOOKS = 2  # the second thread ends after so many later lists of the threads


class Shutdown:
    """A thread `grpc_first`, which starts `grpc_second` when its name is read for the first time, and ends."""

    def __init__(self) -> None:
        self.looks = 0
        self._named, self._read, self._ends = threading.Event(), threading.Event(), threading.Event()
        self._second = threading.Thread(target=self._run_second, daemon=True)
        self._first = threading.Thread(target=self._run_first)
        self._first.start()
        self._named.wait()
        self._path = Path(f"/proc/self/task/{self._first.native_id}")
        sys.addaudithook(self._on_event)

    def _run_first(self) -> None:
        name("grpc_first")
        self._named.set()
        self._read.wait()
        self._second.start()
        self._named.wait()

    def _run_second(self) -> None:
        name("grpc_second")
        self._named.set()
        self._ends.wait()

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and str(args[0]) == str(self._path / "comm") and not self._read.is_set():
            self._named.clear()
            self._read.set()
            while self._path.exists():  # `join` returns before the system forgets the thread
                self._first.join(0.001)
        elif event == "os.listdir" and self._read.is_set():
            self.looks += 1
            if self.looks == LOOKS:
                self._ends.set()


def name(text: str) -> None:
    """Give this thread a name for the system."""
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(text, "utf-8")


def main(target: str) -> None:
    after_close = import_module("forks_after_close")
    os.register_at_fork(before=after_close.look)  # runs after that of the client, because it is registered first
    import_module("forking").Before(target, "closed")
    Shutdown()
    if not (pid := os.fork()):
        os._exit(0)
    os.waitpid(pid, 0)
    print("threads:", *sorted(after_close.running))


if __name__ == "__main__":
    main(*sys.argv[1:])
