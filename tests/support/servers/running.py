"""Servers in their own processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from support.engines.checkpoints import TINY
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS

STOP_SECONDS = HANG_SECONDS
NO_COMPILER = ("--engine.compile", "off")  # which would work for minutes beside the tests
FEW_TIMESTEPS = (*NO_COMPILER, "--engine.timesteps", "4")  # for less time, and words are understood
# On a busy host only the end of a process, and no timeout, means that an engine or a front is lost.
UNTIMED = (
    "--supervision.silence-seconds",
    f"{NEVER_SECONDS:g}",
    "--supervision.step-seconds",
    f"{NEVER_SECONDS:g}",
    "--drain-delay-seconds",
    "0",
)
PROGRAM = ("-m", "voxcpm_client")
FIXED_SEEDS = (Path(__file__).with_name("fixed_seeds.py"),)
ADMIN = re.compile(r"the admin service listens on (\S+)")
FAULTS = re.compile(r" ERROR |Traceback|never retrieved|never awaited|Exception ignored|code=(INTERNAL|UNKNOWN) ")


@dataclass(frozen=True)
class Server:
    """A server that listens, and its log."""

    address: str
    process: subprocess.Popen[str]
    output: IO[str]

    @property
    def log(self) -> str:
        return Path(self.output.name).read_text(encoding="utf-8", errors="replace")

    def calls(self, method: str = r"\w+") -> int:
        """The number of finished RPCs of a method, or of all methods."""
        return len(re.findall(rf" rpc id=\S+ method={method} ", self.log))

    def fault(self) -> str:
        """The first error or traceback in the log, with the lines around it. Whatever a caller does, there is none."""
        log = self.log
        found = FAULTS.search(log)
        return log[max(0, found.start() - 1000) : found.end() + 3000] if found else ""

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_SECONDS)


@contextmanager
def serving(
    voices: str | Path,
    *flags: str,
    model: Path | str = TINY,
    family: Sequence[str] = NO_COMPILER,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str | Path] = PROGRAM,
) -> Iterator[Server]:
    """Serve a model on a free port, with the voice store at a URL, until the end of the block.

    family: flags that its family has
    environment: variables that the processes get beside those of this one
    program: `voxcpm-grpc`, or FIXED_SEEDS for speech that is the same in each run also if a client gives no seed
    """
    light = ("--decode-workers", "1", *family)
    command = [sys.executable, *program, "serve", "--listen", "127.0.0.1:0", *light]
    with tempfile.NamedTemporaryFile("w+", prefix="voxcpm-", suffix=".log") as log:
        process = subprocess.Popen(
            [*command, "--model", str(model), "--voices.url", str(voices), *UNTIMED, *flags],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        try:
            assert process.stdout is not None
            found = re.match(r"listening on (\S+:\d+) ", process.stdout.readline())
            assert found, Path(log.name).read_text(encoding="utf-8")
            yield Server(found[1], process, log)
        finally:
            process.terminate()
            try:
                process.communicate(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
