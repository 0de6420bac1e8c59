"""The event loop of a server process."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

GC_THRESHOLD = 10_000  # new objects between two collections; Python's 700 cost a loaded front 8 % in a profile


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of a server: uvloop's if it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def freeze_objects() -> None:
    """Leave the objects of the start out of later collections, which would block the event loop: they do not end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
