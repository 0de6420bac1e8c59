"""Objects under a URL: each is written once under its own name, read whole, and removed.

Any filesystem of fsspec works: a folder, S3, another object store. Objects never change, so the filesystem needs no
locks, no renames and no conditional writes. It must show an object to every reader once the write has returned.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import fsspec
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.local import LocalFileSystem

from voxcpm_grpc.errors import Reason, StartupError, Unavailable

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
UNFINISHED = ".part"  # the name of an object that is still being written has an ending that starts so


class Objects:
    """Objects named `folder/name`. The methods block, are safe in several threads and raise Unavailable."""

    def __init__(self, url: str, seconds: float = 10.0) -> None:
        """Open the store without connecting to it. Raises StartupError if the URL cannot be a store.

        seconds: longest wait for an answer of a remote store
        """
        self._backend = _backend(url, seconds)

    def names(self, folder: str = "") -> list[str]:
        """All names now, or those in one folder, including unfinished writes with the ending `UNFINISHED`."""
        with _reporting("list"):
            return self._backend.names(folder)

    def read(self, *names: str) -> dict[str, bytes]:
        """The contents of objects by name, without objects that do not exist."""
        with _reporting("read"):
            return self._backend.read(names)

    def write(self, name: str, data: bytes) -> None:
        """Write an object. It is durable on return and not visible before. The data must not be empty."""
        with _reporting("write"):
            self._backend.write(name, data)

    def remove(self, *names: str) -> None:
        """Remove objects; names that do not exist are ignored."""
        with _reporting("remove"):
            self._backend.remove(names)


@contextmanager
def _reporting(verb: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # filesystems raise their own exceptions, and not all of them are OSErrors
        log.warning("voice store: cannot %s: %s: %s", verb, type(error).__name__, error)
        raise Unavailable(
            "the voice store cannot be reached; retry, or speak without a stored voice",
            retry_after=RETRY_SECONDS,
            reason=Reason.VOICE_STORE_UNREACHABLE,
        ) from None


class _Backend(Protocol):
    def names(self, folder: str) -> list[str]: ...
    def read(self, names: tuple[str, ...]) -> dict[str, bytes]: ...
    def write(self, name: str, data: bytes) -> None: ...
    def remove(self, names: tuple[str, ...]) -> None: ...


def _backend(url: str, seconds: float) -> _Backend:
    if "::" in url:
        raise StartupError(f"voices.url is {url}; a chain of filesystems may show deleted voices; name a single one")
    try:
        files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:  # its text names the package
        raise StartupError(f"voices.url is {url}, which needs a package that is not installed: {error}") from None
    except Exception as error:  # filesystems raise their own exceptions
        raise StartupError(f"voices.url is {url}, which cannot be a voice store: {error}") from None
    if not root.strip("/"):
        raise StartupError(f"voices.url is {url}; name a folder in it, such as {url.removesuffix('/')}/voices")
    if isinstance(files, LocalFileSystem):
        return _Folder(Path(root))
    return _Bucket(files, root.rstrip("/"), seconds)


class _Bucket:
    """A remote filesystem whose writes appear whole, as those of object stores do."""

    def __init__(self, files: fsspec.AbstractFileSystem, root: str, seconds: float) -> None:
        self._files = files
        self._root = root
        self._seconds = seconds

    def names(self, folder: str) -> list[str]:
        start = len(self._root) + 1
        found = [path[start:] for path in self._call("find", f"{self._root}/{folder}".rstrip("/"))]
        return [name for name in found if name.count("/") == 1]

    def read(self, names: tuple[str, ...]) -> dict[str, bytes]:
        paths, whole = [f"{self._root}/{name}" for name in names], [None] * len(names)
        answers = self._call("cat_ranges", paths, whole, whole, on_error="return")
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, FileNotFoundError):
                raise answer
        return {name: answer for name, answer in zip(names, answers, strict=True) if isinstance(answer, bytes)}

    def write(self, name: str, data: bytes) -> None:
        self._call("pipe_file", f"{self._root}/{name}", data)

    def remove(self, names: tuple[str, ...]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._call("rm_file", f"{self._root}/{name}")

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the filesystem. The timeout of asynchronous filesystems frees the thread."""
        if isinstance(self._files, AsyncFileSystem):
            call = getattr(self._files, f"_{method}")
            return sync(self._files.loop, call, *args, timeout=self._seconds, **options)
        return getattr(self._files, method)(*args, **options)


class _Folder:
    """A local or shared folder. A crash during a write leaves the whole object or none."""

    def __init__(self, root: Path) -> None:
        self._root = root
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)  # voices are personal data
            os.listdir(root)  # noqa: PTH208 - as below
        except OSError as error:
            raise StartupError(
                f"the voice store {root} cannot be used: {error.strerror}; set voices.url to a writable folder"
            ) from None

    def names(self, folder: str) -> list[str]:
        found: list[str] = []
        for inside in (folder,) if folder else os.listdir(self._root):  # noqa: PTH208 - needs names, not paths
            with suppress(FileNotFoundError, NotADirectoryError):
                found += [f"{inside}/{name}" for name in os.listdir(f"{self._root}/{inside}")]  # noqa: PTH208
        if not found:
            self._root.stat()  # `stat` raises if the folder does not exist
        return found

    def read(self, names: tuple[str, ...]) -> dict[str, bytes]:
        found = {}
        for name in names:
            with suppress(FileNotFoundError):
                found[name] = (self._root / name).read_bytes()
        return found

    def write(self, name: str, data: bytes) -> None:
        path = self._root / name
        temporary = path.with_name(f"{path.name}{UNFINISHED}{secrets.token_hex(4)}")
        try:
            with self._create(temporary) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # another server has removed it
            _sync(path.parent)
        _sync(self._root)

    def _create(self, path: Path) -> BinaryIO:
        """Create the file, although another server may remove its folder while that is empty."""
        for _ in range(10):
            with suppress(FileExistsError):  # `exist_ok` would check again and fail if the folder was removed meanwhile
                path.parent.mkdir(mode=0o700)
            with suppress(FileNotFoundError):
                return path.open("wb")
        raise FileNotFoundError(path.parent)

    def remove(self, names: tuple[str, ...]) -> None:
        for name in names:
            (self._root / name).unlink(missing_ok=True)
        for folder in {(self._root / name).parent for name in names}:
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()


def _sync(folder: Path) -> None:
    """Make the entries of a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
