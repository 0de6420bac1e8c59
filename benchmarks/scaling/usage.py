"""Processor time of a running server and of its clients, by role, and how busy the GPUs are. Linux only."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

import psutil

from benchmarks.measuring.environment import gpus_busy

INTERVAL = 0.5  # seconds between two samples
Threads = Mapping[tuple[int, int], float]  # processor seconds by process and thread


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleUsage:
    """The processor use of the processes of one role.

    cores: cores that all their threads used. busiest_thread: the share of the time, 0 to 1, that the busiest thread
    ran. Python code runs in one thread of a process at a time, so a process whose busiest thread is at 1.0 is at its
    limit.
    """

    processes: int
    cores: float
    busiest_thread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The counters at one time of the clock. host: seconds that all cores worked. gpus: utilization by GPU, 0 to 1."""

    time: float
    roles: Mapping[str, Threads]
    host: float
    gpus: Mapping[int, float] = field(default_factory=dict)


def roles(server: int, clients: Sequence[int]) -> dict[str, list[int]]:
    """The process ids of a server's engines and fronts, and of its clients, by role."""
    tree = [server, *(child.pid for child in psutil.Process(server).children(recursive=True))]
    engines = [pid for pid in tree if _has_torch(pid)]
    return {"engines": engines, "fronts": [pid for pid in tree if pid not in engines], "clients": list(clients)}


def _has_torch(pid: int) -> bool:
    """True if the process has loaded PyTorch. Only engines do."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # the process has ended
        return False


class Sampler:
    """Samples processes every INTERVAL seconds while the block runs."""

    def __init__(self, processes: Mapping[str, Sequence[int]]) -> None:
        self._processes = processes
        self._samples: list[Sample] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def samples(self, begin: float, end: float) -> list[Sample]:
        """The samples between two times; if there are fewer than two, the first and the last of all."""
        within = [sample for sample in self._samples if begin <= sample.time <= end]
        return within if len(within) > 1 else [self._samples[0], self._samples[-1]]

    def _run(self) -> None:
        while True:
            self._samples.append(self._sample())
            if self._stop.wait(INTERVAL):
                self._samples.append(self._sample())
                return

    def _sample(self) -> Sample:
        gpus = gpus_busy()  # first, because it takes long
        threads = {role: dict(_threads(pids)) for role, pids in self._processes.items()}
        host = psutil.cpu_times()
        return Sample(time=perf_counter(), roles=threads, host=sum(host) - host.idle - host.iowait, gpus=gpus)


def _threads(pids: Sequence[int]) -> list[tuple[tuple[int, int], float]]:
    found = []
    for pid in pids:
        try:
            found += [((pid, one.id), one.user_time + one.system_time) for one in psutil.Process(pid).threads()]
        except psutil.Error:
            continue
    return found


def usage(before: Sample, after: Sample) -> dict[str, RoleUsage]:
    """The use of each role between two samples."""
    found = {}
    for role, threads in after.roles.items():
        began = before.roles[role]
        shares = [(seconds - began.get(key, 0.0)) / (after.time - before.time) for key, seconds in threads.items()]
        found[role] = RoleUsage(
            processes=len({pid for pid, _ in threads}), cores=sum(shares), busiest_thread=max(shares, default=0.0)
        )
    return found


def host_cores(before: Sample, after: Sample) -> float:
    """Cores of the host that worked between two samples, for all processes."""
    return (after.host - before.host) / (after.time - before.time)


def gpu_share(samples: Sequence[Sample], gpus: Sequence[int]) -> float | None:
    """Mean utilization of these GPUs, 0 to 1; None if it is unknown."""
    shares = [sample.gpus[gpu] for sample in samples for gpu in gpus if gpu in sample.gpus]
    return sum(shares) / len(shares) if shares else None
