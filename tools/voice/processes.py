"""Commands of the recipe as processes, each on one GPU."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl


class Process(Protocol):
    """A command that runs."""

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""

    def kill(self) -> None: ...


def start_process(arguments: Sequence[str], gpu: int, log: Path) -> "subprocess.Popen[bytes]":
    """Start a tool of this folder. Its output is appended to `log`. It is killed when the calling thread ends.

    arguments: the tool's name and its arguments. gpu: its number among those that this process may use.
    """
    tool, *rest = arguments
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    device = visible.split(",")[gpu] if visible is not None else str(gpu)

    def tie() -> None:
        prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before
            os._exit(1)

    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", f"tools.voice.{tool}", *rest], stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": device, "PYTHONUNBUFFERED": "1"}, preexec_fn=tie,
        )  # fmt: skip
