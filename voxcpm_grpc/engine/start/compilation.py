"""Compiles parts of a model for later starts, in one process beside the engine."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from voxcpm_grpc.machine import priority
from voxcpm_grpc.machine.home import home

logger = logging.getLogger(__name__)

DELAY_SECONDS = 30.0  # seconds after the start, so that a short one never competes with its own compiler


@dataclass(frozen=True, slots=True)
class Compilation:
    """A command that compiles parts of a model into a folder. It must end when its standard input does."""

    command: tuple[str, ...]  # Python gets these arguments
    folder: Path


def cache_folder() -> Path | None:
    """The folder for compiled parts, which only its owner can read or write; None for a user without a home."""
    found = home()
    return found and found / ".cache" / "voxcpm-grpc" / "compiled"


def has_compiler() -> bool:
    """True if there is a C++ compiler where PyTorch looks for it."""
    return any(shutil.which(name) for name in ("g++", "c++", "clang++"))


def compile_later(compilation: Compilation, delay: float = DELAY_SECONDS) -> threading.Thread | None:
    """Run the command after `delay` seconds, at the lowest priority; returns the thread that waits for it.

    Returns None without a C++ compiler. A failure costs a line in the log and nothing else.
    """
    if not has_compiler():
        logger.info("nothing is compiled for later starts: there is no C++ compiler (g++)")
        return None
    thread = threading.Thread(target=_run, args=(compilation, delay), name="compilation", daemon=True)
    thread.start()
    return thread


def compile_now(compilation: Compilation, lowered: bool = False) -> None:
    """Run the command and wait for it, if `lowered` at the lowest priority.

    A failure costs a line in the log and nothing else.
    """
    started = monotonic()
    try:
        compilation.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        failure = _wait(compilation.command, lowered)
    except OSError as error:
        failure = str(error)
    if failure is not None:
        logger.warning("the compilation for later starts failed; this costs speed alone: %s", failure)
    else:
        logger.info("compiled for later starts seconds=%.0f", monotonic() - started)


def _run(compilation: Compilation, delay: float) -> None:
    threading.Event().wait(delay)
    compile_now(compilation, lowered=True)


def _wait(command: Sequence[str], lowered: bool) -> str | None:
    """Run a command to its end; returns the last line of its errors if it fails."""
    with subprocess.Popen(
        (sys.executable, *command),
        stdin=subprocess.PIPE,  # the pipe stays open until this process ends
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        if lowered:
            priority.lower(process.pid)
        assert process.stderr
        lines = process.stderr.read().decode(errors="replace").strip().splitlines()
        status = process.wait()
    return (lines or [f"status {status}"])[-1] if status else None
