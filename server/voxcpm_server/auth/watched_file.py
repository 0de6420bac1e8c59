"""Files that an operator may replace while the server runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from voxcpm_grpc.errors import StartupError

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0  # seconds between two looks at the files

T = TypeVar("T")


class WatchedFiles(Generic[T]):
    """The value that `read` makes of some files; it is made again when one of them changes.

    A version that cannot be read is reported once, and the last good value stays. Thread-safe.

    read: raises StartupError if the content is not valid
    """

    def __init__(self, files: tuple[Path, ...], read: Callable[[], T]) -> None:
        self._files = files
        self._read = read
        self._lock = threading.Lock()
        self._checked = time.monotonic()
        self._stamp = self._stat()
        self._value = self._load()

    def value(self) -> T:
        """The value of the files as they were at most CHECK_SECONDS ago."""
        if time.monotonic() - self._checked >= CHECK_SECONDS:
            with self._lock:
                self._check()
        return self._value

    def _check(self) -> None:
        self._checked = time.monotonic()
        stamp = self._stat()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        names = ", ".join(map(str, self._files))
        try:
            self._value = self._load()
        except StartupError as error:
            log.error("%s; the last good version stays in use", error)
        else:
            log.info("read again: %s", names)

    def _load(self) -> T:
        try:
            return self._read()
        except OSError as error:
            raise StartupError(f"{error.filename} cannot be read: {error.strerror}") from None

    def _stat(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stat(path) for path in self._files)


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
