"""Imports of modules that stay until the process ends."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def importing(module: str) -> Iterator[None]:
    """Import `module` inside the block without collections of garbage, and leave its objects out of later ones.

    Collections would look at the objects of its modules again and again, and at the exit. Of PyTorch these are hundreds
    of thousands: a third of the processor's time of a process that imports it. If the module is there already, nothing
    changes.
    """
    if module in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
