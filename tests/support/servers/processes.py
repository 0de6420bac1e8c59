"""The processes that tests start, by their ids."""

from __future__ import annotations

import psutil


def children() -> set[int]:
    """All but the one with which Python watches over what its processes share."""
    found = psutil.Process().children(recursive=True)
    return {child.pid for child in found if "resource_tracker" not in " ".join(child.cmdline())}


def is_gone(pid: int | None) -> bool:
    assert pid
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
