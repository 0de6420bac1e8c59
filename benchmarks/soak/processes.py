"""The memory and the descriptors of a server's processes. Needs psutil, which the `bench` extra installs."""

from __future__ import annotations

from typing import TypedDict

import psutil

MIB = 1 << 20


class Sample(TypedDict):
    """The server at one moment, with no call in progress.

    seconds: since the start of the load
    calls: calls that have ended so far
    voices: stored voices
    mib: resident memory of each kind of process
    descriptors: open files and sockets of the front
    threads: threads of the front
    """

    seconds: float
    calls: int
    voices: int
    mib: dict[str, float]
    descriptors: int
    threads: int


def sample(pid: int, *, seconds: float, calls: int, voices: int) -> Sample:
    """Measure the process of a front, and those that it started."""
    front = psutil.Process(pid)
    mib = {"front": front.memory_info().rss / MIB}
    for child in front.children(recursive=True):
        title = " ".join(child.cmdline())
        kind = "engine" if "engine" in title else "other"
        mib[kind] = mib.get(kind, 0.0) + child.memory_info().rss / MIB
    return Sample(
        seconds=seconds,
        calls=calls,
        voices=voices,
        mib=mib,
        descriptors=front.num_fds(),
        threads=front.num_threads(),
    )
