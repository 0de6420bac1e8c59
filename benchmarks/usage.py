"""How busy the parts of a running server are, and those who load it: which of them can do no more. Linux only."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

import psutil

from benchmarks.hardware import gpus_busy

INTERVAL = 0.5  # seconds between two looks
Threads = Mapping[tuple[int, int], float]  # processor seconds by process and thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Of the processes of one role: cores that all their threads filled, and the share of the time that the busiest of
    them ran. Python runs in one thread of a process at a time, so that one at 1.0 is at its limit."""

    processes: int
    cores: float
    busiest_thread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was read at one time."""

    time: float
    roles: Mapping[str, Threads]
    host: float  # seconds that the host's cores worked
    gpus: Mapping[int, float] = field(default_factory=dict)  # share of the time that each of them ran anything


def roles(server: int, clients: Sequence[int]) -> dict[str, list[int]]:
    """The processes of a server and of those who call it, by what they do."""
    tree = [server, *(child.pid for child in psutil.Process(server).children(recursive=True))]
    engines = [pid for pid in tree if _has_torch(pid)]
    return {"engines": engines, "fronts": [pid for pid in tree if pid not in engines], "clients": list(clients)}


def _has_torch(pid: int) -> bool:
    """Whether it is an engine: of all processes, only they load PyTorch."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # gone meanwhile
        return False


class Meter:
    """Looks at processes again and again while the block lasts."""

    def __init__(self, processes: Mapping[str, Sequence[int]]) -> None:
        self._processes = processes
        self._looks: list[Look] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def looks(self, begin: float, end: float) -> list[Look]:
        """Those within a time, or else the first and the last of all."""
        within = [look for look in self._looks if begin <= look.time <= end]
        return within if len(within) > 1 else [self._looks[0], self._looks[-1]]

    def _watch(self) -> None:
        while True:
            self._looks.append(self._look())
            if self._stop.wait(INTERVAL):
                self._looks.append(self._look())
                return

    def _look(self) -> Look:
        gpus = gpus_busy()  # first, for it takes a while
        threads = {role: dict(_threads(pids)) for role, pids in self._processes.items()}
        host = psutil.cpu_times()
        return Look(time=perf_counter(), roles=threads, host=sum(host) - host.idle - host.iowait, gpus=gpus)


def _threads(pids: Sequence[int]) -> list[tuple[tuple[int, int], float]]:
    found = []
    for pid in pids:
        try:
            found += [((pid, one.id), one.user_time + one.system_time) for one in psutil.Process(pid).threads()]
        except psutil.Error:
            continue
    return found


def use(before: Look, after: Look) -> dict[str, Use]:
    """Of each role, between two looks."""
    found = {}
    for role, threads in after.roles.items():
        began = before.roles[role]
        shares = [(seconds - began.get(key, 0.0)) / (after.time - before.time) for key, seconds in threads.items()]
        found[role] = Use(
            processes=len({pid for pid, _ in threads}), cores=sum(shares), busiest_thread=max(shares, default=0.0)
        )
    return found


def host_cores(before: Look, after: Look) -> float:
    """Cores of the host that worked between two looks, for whomever."""
    return (after.host - before.host) / (after.time - before.time)


def gpu_share(looks: Sequence[Look], gpus: Sequence[int]) -> float | None:
    """Mean share of the time that these GPUs ran anything; None where that is not known."""
    shares = [look.gpus[gpu] for look in looks for gpu in gpus if gpu in look.gpus]
    return sum(shares) / len(shares) if shares else None
