"""Where the sockets between processes of this host have their files: in private folders, which do not pile up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from pathlib import Path

PREFIX = "voxcpm-sockets-"


class SocketFolder:
    """A new folder for sockets, of this user alone, until it is closed.

    It is locked for as long, and the system gives the lock back when the process ends in whatever way. So the next
    folder that is made can first remove those that were left by processes that were killed.
    """

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self._lock: int | None
        self.path, self._lock = _made()

    def close(self) -> None:
        """Safe more than once."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                _remove(self.path)
            os.close(self._lock)
            self._lock = None


def _made() -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))  # made with mode 0700
        try:
            lock = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # it looked forsaken before it was locked
        with contextlib.suppress(OSError):  # a filesystem without locks: nobody else gets one there either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if path.is_dir():
            return path, lock
        os.close(lock)


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or somebody else removes it now
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(path)
            finally:
                os.close(lock)


def _remove(path: Path) -> None:
    """The folder and the sockets in it. Raises OSError, and leaves it, if it holds anything else."""
    for inside in path.iterdir():
        if stat.S_ISSOCK(inside.lstat().st_mode):
            inside.unlink(missing_ok=True)
    path.rmdir()
