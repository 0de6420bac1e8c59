"""The directory of downloaded adapters, which several processes share."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from voxcpm_grpc.errors import Aborted, FailedPrecondition, Reason, VoxCPMError

log = logging.getLogger(__name__)

_UNFINISHED = ".part-"  # the names of temporary folders start so
_LOCK = "lock"  # a process locks this file of a temporary folder as long as it uses the folder
_CONTENT = "content"  # this folder in it gets the files
_PART = 4 << 20  # bytes read at once


class LoraCache:
    """Adapters in directories named by their content. The methods block, and are safe in several threads."""

    def __init__(self, root: Path) -> None:
        """Removes the temporary folders of processes that have ended. Creates nothing."""
        self._root = root
        for folder in root.glob(f"{_UNFINISHED}*"):
            with suppress(OSError):
                if lock := _locked(folder):
                    with lock:
                        shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """An empty folder for a download, which does not exist afterwards. Raises FailedPrecondition."""
        with storing():
            folder, lock = self._create()
        with lock:
            try:
                with storing():
                    (folder / _CONTENT).mkdir()
                yield folder / _CONTENT
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _create(self) -> tuple[Path, BinaryIO]:
        """A new temporary folder, and its lock. Raises OSError."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:  # another process may remove the folder before it is locked
            folder = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._root))
            if lock := _locked(folder):
                return folder, lock

    def keep(self, content: Path, names: Sequence[str]) -> Path:
        """Move a temporary folder with these files to its name, unless equal content is there. Returns the directory.

        The directory appears whole, also after a crash of the host. Raises FailedPrecondition.
        """
        with storing():
            name = _name(content, names)
            _sync(content)
            kept = self._root / name
            try:
                content.rename(kept)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                if not _holds(kept, names, name):  # somebody has changed it
                    kept.rename(content.with_name("damaged"))
                    content.rename(kept)
            _sync(self._root)
            return kept


class NewFile(io.FileIO):
    """A file of a temporary folder that takes at most `limit` bytes, and none once `stopped` is set.

    A write raises `too_large` beyond the limit, Aborted after the stop, and FailedPrecondition for a fault of the disk.
    """

    def __init__(self, path: Path, limit: int, stopped: threading.Event, too_large: VoxCPMError) -> None:
        with storing():
            super().__init__(path, "x")
        self._limit = limit
        self._stopped = stopped
        self._too_large = too_large

    def write(self, data: Any, /) -> int:
        view = memoryview(data)
        if self._stopped.is_set():
            raise Aborted(
                "the call was cancelled; call again to fetch the adapter", reason=Reason.REGISTRATION_CANCELLED
            )
        if self.tell() + len(view) > self._limit:
            raise self._too_large
        done = 0
        with storing():
            while done < len(view):
                done += super().write(view[done:]) or 0
        return done

    def close(self) -> None:
        if not self.closed:
            with storing():
                os.fsync(self.fileno())
        super().close()


@contextmanager
def storing() -> Iterator[None]:
    """Turn an OSError of the block into FailedPrecondition. The log has the error."""
    try:
        yield
    except OSError as error:
        log.warning("LoRA cache: cannot store an adapter: %s: %s", type(error).__name__, error)
        raise FailedPrecondition(
            "the adapter cannot be stored on the server's disk; free space in its cache of adapters, or make it "
            "writable for the server, whose log has the cause",
            reason=Reason.LORA_CACHE_UNUSABLE,
        ) from None


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal digits. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_PART):
            digest.update(part)
    return digest.hexdigest()


def _name(folder: Path, names: Sequence[str]) -> str:
    """The name for the content of these files of a folder. Raises OSError."""
    return hashlib.sha256("".join(sha256_of(folder / name) for name in names).encode()).hexdigest()


def _holds(folder: Path, names: Sequence[str], name: str) -> bool:
    try:
        return _name(folder, names) == name
    except OSError:  # a file is missing
        return False


def _locked(folder: Path) -> BinaryIO | None:
    """The lock of a temporary folder, held until it is closed; None if a process has it or the folder is removed.

    Raises OSError if the filesystem has no locks.
    """
    try:
        lock = (folder / _LOCK).open("ab")
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError:
        lock.close()
        raise
    if os.fstat(lock.fileno()).st_nlink:
        return lock
    lock.close()  # the folder was removed between the opening and the lock
    return None


def _sync(folder: Path) -> None:
    """Make the entries of a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
