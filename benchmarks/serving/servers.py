"""Servers to measure: one that the benchmark starts in processes of its own, or one that is running already."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Self

START_SECONDS, STOP_SECONDS = 400, 60


class Server:
    """A server that runs while the block runs. `targets` waits until it is ready.

    extra: more flags of `voxcpm-grpc serve`.
    log: receives the lines of its log; None for those of this process
    """

    def __init__(self, model: str, timesteps: int | None, extra: Sequence[str], log: IO[bytes] | None = None) -> None:
        self._flags = {"--model": model} | ({"--engine.timesteps": str(timesteps)} if timesteps else {})
        self._extra = extra
        self._log = log
        self._targets: list[str] = []
        self._too_slow = False

    def __enter__(self) -> Self:
        self._voices = tempfile.TemporaryDirectory()
        flags = self._flags | {
            "--listen": "127.0.0.1:0",
            "--log-level": "warning",
            "--voices.url": self._voices.name,
        }
        words = [word for flag in flags.items() for word in flag]
        command = [sys.executable, "-m", "voxcpm_client", "serve", *words, *self._extra]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        self._watchdog = threading.Timer(START_SECONDS, self._give_up)
        self._watchdog.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watchdog.cancel()
        self._process.send_signal(signal.SIGINT)  # SIGTERM would leave time for load balancers
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._voices.cleanup()

    @property
    def pid(self) -> int:
        return self._process.pid

    def targets(self) -> list[str]:
        """The address of each front. Waits for the server. Raises SystemExit if it does not start."""
        assert self._process.stdout is not None
        if not self._targets:
            ready = next((line for line in self._process.stdout if line.startswith("listening on ")), None)
            if ready is None:
                status = self._process.wait()
                reason = (
                    f"did not start within {START_SECONDS} s"
                    if self._too_slow
                    else f"ended with status {status} before it was ready"
                )
                raise SystemExit(f"the server {reason}; its messages are above")
            self._watchdog.cancel()
            self._targets = ready.split()[2].split(",")
        return self._targets

    def _give_up(self) -> None:
        self._too_slow = True
        self._process.kill()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose a server: --target or --model."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--target", help="HOST:PORT of a running server; several are separated by commas")
    where.add_argument(
        "--model",
        default="demo",
        help="model of the server that the benchmark starts: demo, a directory, or a hub repository id",
    )


@contextmanager
def reached(options: argparse.Namespace, extra: Sequence[str]) -> Iterator[list[str]]:
    """The addresses of the server that the flags of `add_flags` choose, which is started if need be.

    extra: flags of a server that is started. Raises SystemExit for extra flags together with --target.
    """
    if options.target:
        if extra:
            raise SystemExit(f"{extra[0]} is a flag of a server that is started, but --target names a running one")
        yield options.target.split(",")
    else:
        with Server(options.model, options.timesteps or None, extra) as server:
            yield server.targets()
