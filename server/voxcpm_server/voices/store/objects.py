"""Objects under a URL: each written once under a name of its own, read whole, removed when done with.

Whatever fsspec knows will do: a folder, S3, a bucket elsewhere. Nothing is ever changed under its name, so a store
needs no locks, no renames and no conditional writes, only that it shows what was written to whoever asks afterwards.
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

from voxcpm_grpc.errors import StartupError, Unavailable

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
UNFINISHED = ".part"  # begins the end of a name whose object is still being written


class Objects:
    """Names are `folder/name`. Blocking, and safe to call from several threads; whatever fails is Unavailable."""

    def __init__(self, url: str, seconds: float = 10.0) -> None:
        """A remote store may take so long to answer. Whether it does is found out later.

        Raises StartupError for what cannot be a store.
        """
        self._place = _place(url, seconds)

    def names(self, folder: str = "") -> list[str]:
        """All names, or those in one folder, as of now; with `UNFINISHED` those of writes that go on or broke off."""
        with _reporting("list"):
            return self._place.names(folder)

    def read(self, *names: str) -> dict[str, bytes]:
        """What the names hold; those that do not exist are left out."""
        with _reporting("read"):
            return self._place.read(names)

    def write(self, name: str, data: bytes) -> None:
        """Durable on return; before that, nobody sees it. The data must not be empty."""
        with _reporting("write"):
            self._place.write(name, data)

    def remove(self, *names: str) -> None:
        """Gone on return, also what had gone before."""
        with _reporting("remove"):
            self._place.remove(names)


@contextmanager
def _reporting(verb: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # every filesystem has its own kinds, and not all are OSErrors
        log.warning("voice store: cannot %s: %s: %s", verb, type(error).__name__, error)
        raise Unavailable(
            "the voice store cannot be reached; retry, or speak without a stored voice", retry_after=RETRY_SECONDS
        ) from None


class _Place(Protocol):
    def names(self, folder: str) -> list[str]: ...
    def read(self, names: tuple[str, ...]) -> dict[str, bytes]: ...
    def write(self, name: str, data: bytes) -> None: ...
    def remove(self, names: tuple[str, ...]) -> None: ...


def _place(url: str, seconds: float) -> _Place:
    if "::" in url:
        raise StartupError(f"voices.url is {url}; a chain of filesystems may show what was deleted: name one")
    try:
        files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:  # it says which package to install
        raise StartupError(f"voices.url is {url}, which needs a package that is not installed: {error}") from None
    except Exception as error:  # every filesystem has its own ways to refuse a URL
        raise StartupError(f"voices.url is {url}, which cannot be a voice store: {error}") from None
    if not root.strip("/"):
        raise StartupError(f"voices.url is {url}; name a folder in it, such as {url.removesuffix('/')}/voices")
    if isinstance(files, LocalFileSystem):
        return _Folder(Path(root))
    return _Bucket(files, root.rstrip("/"), seconds)


class _Bucket:
    """Anywhere but here. What it writes appears at once and whole, as object stores do."""

    def __init__(self, files: fsspec.AbstractFileSystem, root: str, seconds: float) -> None:
        self._files = files
        self._root = root
        self._seconds = seconds

    def names(self, folder: str) -> list[str]:
        start = len(self._root) + 1
        found = [path[start:] for path in self._ask("find", f"{self._root}/{folder}".rstrip("/"))]
        return [name for name in found if name.count("/") == 1]

    def read(self, names: tuple[str, ...]) -> dict[str, bytes]:
        paths, whole = [f"{self._root}/{name}" for name in names], [None] * len(names)
        answers = self._ask("cat_ranges", paths, whole, whole, on_error="return")
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, FileNotFoundError):
                raise answer
        return {name: answer for name, answer in zip(names, answers, strict=True) if isinstance(answer, bytes)}

    def write(self, name: str, data: bytes) -> None:
        self._ask("pipe_file", f"{self._root}/{name}", data)

    def remove(self, names: tuple[str, ...]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._ask("rm_file", f"{self._root}/{name}")

    def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        """What a method of the filesystem returns; one that can be given up is, in time, and frees its thread."""
        if isinstance(self._files, AsyncFileSystem):
            asking = getattr(self._files, f"_{method}")
            return sync(self._files.loop, asking, *args, timeout=self._seconds, **options)
        return getattr(self._files, method)(*args, **options)


class _Folder:
    """A folder of this host, or one that hosts share. Written so that a crash leaves all of an object or nothing."""

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
        for inside in (folder,) if folder else os.listdir(self._root):  # noqa: PTH208 - names are wanted, not paths
            with suppress(FileNotFoundError, NotADirectoryError):
                found += [f"{inside}/{name}" for name in os.listdir(f"{self._root}/{inside}")]  # noqa: PTH208
        if not found:
            self._root.stat()  # a store that is gone is not an empty one
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
        with suppress(FileNotFoundError):  # another server removed it already
            _sync(path.parent)
        _sync(self._root)

    def _create(self, path: Path) -> BinaryIO:
        """The new file, in a folder that another server may remove, being empty, just when it was made here."""
        for _ in range(10):
            with suppress(FileExistsError):  # `exist_ok` would look again, and the folder may be gone by then
                path.parent.mkdir(mode=0o700)
            with suppress(FileNotFoundError):
                return path.open("wb")
        raise FileNotFoundError(path.parent)

    def remove(self, names: tuple[str, ...]) -> None:
        for name in names:
            (self._root / name).unlink(missing_ok=True)
        for folder in {(self._root / name).parent for name in names}:
            with suppress(OSError):  # there are others in it
                folder.rmdir()


def _sync(folder: Path) -> None:
    """Make the entries of a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
