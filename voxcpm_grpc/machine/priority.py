"""The lowest priority, for work that must not delay speech."""

from __future__ import annotations

import os

LOWEST = 19  # as `nice` counts


def lower(id: int) -> None:
    """Give the process of this id, or on Linux the thread, the lowest priority. Windows has no such priority."""
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, id, LOWEST)
