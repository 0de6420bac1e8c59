"""Imports of modules that stay until the process ends."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator

_importing = threading.RLock()
_failed: dict[str, Exception] = {}


@contextlib.contextmanager
def importing(module: str, *, once: bool = False) -> Iterator[None]:
    """Import `module` inside the block without collections of garbage, and leave its objects out of later ones.

    Collections would look at the objects of its modules again and again, and at the exit. Of PyTorch these are hundreds
    of thousands: a third of the processor's time of a process that imports it. If the module is there already, nothing
    changes. A block in another thread waits for the end of this one.

    once: an import that has failed, as one of PyTorch, would fail in another way if it was tried again; later blocks
        raise the first error
    """
    with _importing:
        if error := _failed.get(module):
            raise error
        if module in sys.modules or not gc.isenabled():
            yield
            return
        gc.disable()
        try:
            yield
        except Exception as error:
            if once:
                _failed[module] = error
            raise
        finally:
            gc.freeze()
            gc.enable()
