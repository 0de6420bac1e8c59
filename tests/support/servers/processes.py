"""The processes that tests start, by their ids."""

from __future__ import annotations

from multiprocessing import resource_tracker

import psutil


def children() -> set[int]:
    """All that run, but the one with which Python watches over what its processes share."""
    found = psutil.Process().children(recursive=True)
    return {child.pid for child in found if (command := command_of(child)) and "resource_tracker" not in command}


def command_of(process: psutil.Process) -> str:
    """The command line, or the title; empty if the process has just ended."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.NoSuchProcess:
        return ""


def open_files() -> int:
    """The files that this process has open, always with the pipe of the process that Python starts with the first."""
    resource_tracker.ensure_running()
    return psutil.Process().num_fds()


def is_gone(pid: int | None) -> bool:
    assert pid
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
