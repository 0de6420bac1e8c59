"""The processor cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def available_cores(cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> float:
    """The number of cores, or parts of one: those that the process may run on, and what its cgroups allow of them."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(count), *_quotas(cgroups, own)])


def _quotas(cgroups: Path, own: Path) -> Iterator[float]:
    """The cores that each cgroup of the process allows, of both versions of cgroups."""
    try:
        lines = own.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = cgroups / controllers if controllers else cgroups
        # In a container, the path may be that of the host, of which the container sees the last part as its root.
        groups = [top / Path(path.lstrip("/")), *(top / Path(path.lstrip("/"))).parents]
        for group in dict.fromkeys((*groups[: groups.index(top) + 1], top)):
            quota = _version_1(group) if controllers else _version_2(group)
            if quota is not None:
                yield quota


def _version_2(group: Path) -> float | None:
    try:
        allowed, period = (group / "cpu.max").read_text("ascii").split()
        return int(allowed) / int(period)
    except (OSError, ValueError):  # max stands for no limit
        return None


def _version_1(group: Path) -> float | None:
    try:
        allowed = int((group / "cpu.cfs_quota_us").read_text("ascii"))
        return allowed / int((group / "cpu.cfs_period_us").read_text("ascii")) if allowed > 0 else None
    except (OSError, ValueError):
        return None
