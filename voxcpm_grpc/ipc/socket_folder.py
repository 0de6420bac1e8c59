"""Private folders for the files of sockets between processes of one host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from pathlib import Path

PREFIX = "voxcpm-sockets-"


class SocketFolder:
    """A new folder for sockets that only this user can enter. It exists until `close`.

    The folder is locked, and the system releases the lock when the process ends in any way. Each new folder first
    removes the folders of processes that were killed.
    """

    def __init__(self) -> None:
        _remove_abandoned(Path(tempfile.gettempdir()))
        self._lock: int | None
        self.path, self._lock = _create()

    def close(self) -> None:
        """Remove the folder. May be called more than once."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                _remove(self.path)
            os.close(self._lock)
            self._lock = None


def _create() -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))  # the folder has mode 0700
        try:
            lock = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another process removed it, because it was not locked yet
        with contextlib.suppress(OSError):  # a filesystem without locks lets no process get one
            fcntl.flock(lock, fcntl.LOCK_EX)
        if path.is_dir():
            return path, lock
        os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it belongs to another user, or another process removes it now
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(path)
            finally:
                os.close(lock)


def _remove(path: Path) -> None:
    """Remove a folder and its sockets. Raises OSError, and keeps the folder, if it holds anything else."""
    for file in path.iterdir():
        if stat.S_ISSOCK(file.lstat().st_mode):
            file.unlink(missing_ok=True)
    path.rmdir()
