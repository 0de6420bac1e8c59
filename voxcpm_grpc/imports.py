"""Imports of modules that stay until the process ends."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator

_importing = threading.RLock()


@contextlib.contextmanager
def importing(module: str) -> Iterator[None]:
    """Import `module` inside the block without collections of garbage, and leave its objects out of later ones.

    If another thread is inside such a block, this one waits for its end.


    Collections would look at the objects of its modules again and again, and at the exit. Of PyTorch these are hundreds
    of thousands: a third of the processor's time of a process that imports it. If the module is there already, nothing
    changes.
    """
    with _importing:
        if module in sys.modules or not gc.isenabled():
            yield
            return
        gc.disable()
        try:
            yield
        finally:
            gc.freeze()
            gc.enable()
