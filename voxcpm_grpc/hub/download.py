"""Downloads the files of a Hugging Face repository: with their total size known first, resumed, and checked.

huggingface_hub keeps no part of a file whose download was interrupted, so large files, which the repository lists with
their SHA-256, are fetched here before it is called: into a file beside their place in its cache, which the next attempt
continues.
"""

from __future__ import annotations

import io
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.hub.bars import DOWNLOADING, progress_bars, reporting_bars
from voxcpm_grpc.hub.digest import digest_file
from voxcpm_grpc.hub.errors import Interrupted, remedied, remedy_of
from voxcpm_grpc.progress import Progress, listener

CHECKING = "the files are being checked"

SUMS = "SHA256SUMS"
"""The file of a copy with the SHA-256 of all others, as `sha256sum --check` reads it."""

MAX_SMALL = 1 << 20  # bytes of a file that is read into memory

_ATTEMPTS = 3  # a broken transfer has so many attempts
_LIST_SECONDS = 10  # seconds to wait for the list of files; without it the cache is used


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository.

    size: in bytes
    sha256: of its content, hexadecimal; empty for a small file, which the repository lists by `git_id` alone
    git_id: the id of a small file in git, a SHA-1 of its content with its length
    """

    name: str
    size: int
    sha256: str
    git_id: str

    @property
    def blob(self) -> str:
        """The name of the content in the cache of huggingface_hub."""
        return self.sha256 or self.git_id


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a repository at a commit.

    names: of all files, also of those that are not downloaded
    config: what the hub tells of config.json
    """

    model: str
    commit: str
    files: tuple[RemoteFile, ...]
    names: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The folder that a download fills: a folder of its own (`copy`), or the cache of huggingface_hub."""

    folder: Path
    copy: bool
    commit: str

    @classmethod
    def of(cls, listing: Listing, cache_dir: Path | None, copy: Path | None) -> CacheEntry:
        if copy is not None:
            return cls(copy, True, listing.commit)
        from huggingface_hub import constants

        return cls(
            Path(cache_dir or constants.HF_HUB_CACHE) / f"models--{listing.model.replace('/', '--')}",
            False,
            listing.commit,
        )

    def path(self, file: RemoteFile) -> Path:
        return self.folder / file.name if self.copy else self.folder / "blobs" / file.blob

    def partial(self, file: RemoteFile) -> Path:
        path = self.path(file)
        return path.with_name(f"{path.name}.part")

    def existing(self, file: RemoteFile) -> Path | None:
        """The path of a file that is here, in the cache also under a name of another hub's choice; else None."""
        paths = (self.path(file), self.folder / "snapshots" / self.commit / file.name)
        return next((path for path in paths if path.exists()), None)

    def complete(self, file: RemoteFile) -> bool:
        """True if a file is here."""
        return self.existing(file) is not None

    def present(self, file: RemoteFile) -> int:
        """The bytes of a file that are here."""
        if self.complete(file):
            return file.size
        with suppress(OSError):
            return min(self.partial(file).stat().st_size, file.size)
        return 0

    @property
    def free(self) -> int:
        """The bytes that the disk has left. Raises OSError."""
        folder = self.folder.absolute()
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return shutil.disk_usage(folder).free


def list_files(model: str, revision: str | None, patterns: tuple[str, ...], token: str | None) -> Listing | None:
    """The files of a repository that match; None if it cannot be reached. Raises StartupError with the remedy."""
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(model, revision=revision, files_metadata=True, token=token, timeout=_LIST_SECONDS)
    except Exception as error:  # versions of huggingface_hub raise errors of different HTTP libraries
        if remedy := remedy_of(error, model, revision):
            raise StartupError(remedy) from error
        return None
    found = [one for one in info.siblings or () if any(fnmatch(one.rfilename, pattern) for pattern in patterns)]
    if not info.sha or any(one.size is None or not (one.lfs or one.blob_id) for one in found):
        return None  # this mirror does not list sizes
    for one in found:
        if Path(one.rfilename).is_absolute() or ".." in Path(one.rfilename).parts:
            raise StartupError(f"{model} lists the file {one.rfilename!r}, which leaves its folder; do not use it")
    files = [RemoteFile(f.rfilename, f.size or 0, f.lfs.sha256 if f.lfs else "", f.blob_id or "") for f in found]
    names = tuple(one.rfilename for one in info.siblings or ())
    return Listing(model, info.sha, tuple(files), names, info.config or {})


def require_space(listing: Listing, entry: CacheEntry) -> int:
    """The bytes that are still to be fetched. Raises StartupError, with the figures, if the disk has not as many."""
    missing = listing.size - sum(entry.present(file) for file in listing.files)
    try:
        free = entry.free
    except OSError as error:
        raise StartupError(f"{entry.folder} cannot be used: {error.strerror}") from None
    if missing > free:
        raise StartupError(
            f"{listing.model} needs {gigabytes(missing)} more in {entry.folder}, and {gigabytes(free)} are free there; "
            f"free some space, or choose another directory with {'--to' if entry.copy else '--cache-dir'}"
        )
    return missing


def fetch(
    model: str,
    revision: str | None,
    patterns: tuple[str, ...],
    cache_dir: Path | None = None,
    *,
    token: str | None = None,
    listing: Listing | None = None,
    bars: bool = False,
) -> Path:
    """Download a repository into the cache, or find it there, and return the directory of its snapshot.

    With a `listing`, large files are resumed and checked. `bars` shows the progress bars of huggingface_hub; without it
    the progress is reported, see `voxcpm_grpc.progress`. Raises StartupError with the remedy.
    """
    from huggingface_hub import snapshot_download

    base = 0
    with remedied(model, revision):
        if listing is not None:
            entry = CacheEntry.of(listing, cache_dir, None)
            require_space(listing, entry)
            base = _fetch_large(listing, entry, token)
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            with progress_bars(bars):
                reporting = None if bars else reporting_bars(base, listing.size if listing else 0)
                path = Path(
                    snapshot_download(
                        model,
                        revision=revision,
                        cache_dir=cache_dir,
                        allow_patterns=[*patterns],
                        tqdm_class=reporting,
                        token=token,
                    )
                )
            if listing and not bars:
                listener()(Progress(DOWNLOADING, listing.size, listing.size, in_bytes=True))
            return path
        except Exception as error:
            if remedy := remedy_of(error, model, revision):
                raise StartupError(remedy) from error
            failure = error
    reason = str(failure).strip().partition("\n")[0]
    raise Interrupted(
        f"downloading {model} failed {_ATTEMPTS} times, the last time with {type(failure).__name__}: {reason}; try "
        "again later, complete files are kept"
    ) from failure


def fetch_file(model: str, revision: str | None, name: str) -> Path:
    """The path of a small file in the cache, downloaded if it is not there. Raises StartupError with the remedy."""
    from huggingface_hub import hf_hub_download

    with remedied(model, revision), progress_bars(False):
        return Path(hf_hub_download(model, name, revision=revision))


def read_file(listing: Listing, name: str, entry: CacheEntry, token: str | None = None) -> bytes:
    """The content of a small file of a repository, from `entry` if it is there; empty if it has none of this name.

    Raises StartupError with the remedy.
    """
    found = next((file for file in listing.files if file.name == name and file.size <= MAX_SMALL), None)
    if found is None:
        return b""
    content = io.BytesIO()
    with remedied(listing.model, listing.commit):
        if (path := entry.existing(found)) is not None:
            return path.read_bytes()
        write_content(listing, found, content, token=token)
    return content.getvalue()


def fetch_copy(listing: Listing, folder: Path, token: str | None = None) -> None:
    """Download all files of a repository into a folder, and write their sums to `SUMS`. Raises StartupError."""
    entry = CacheEntry.of(listing, None, folder)
    require_space(listing, entry)
    with remedied(listing.model, listing.commit):
        _fetch_large(listing, entry, token, small=True)
        sums = {file.name: file.sha256 or digest_file(entry.path(file)).hexdigest() for file in listing.files}
        (folder / SUMS).write_text("".join(f"{value}  {name}\n" for name, value in sorted(sums.items())), "utf-8")


def write_content(
    listing: Listing, file: RemoteFile, target: BinaryIO, there: int = 0, token: str | None = None
) -> None:
    """Write the content of a file to `target`, from byte `there` on. Raises errors of huggingface_hub and `target`."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(listing.model, file.name, revision=listing.commit)
    headers = build_hf_headers(token=token)
    location = get_hf_file_metadata(url, token=token).location or url
    if urlsplit(location).netloc != urlsplit(url).netloc:
        headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
    with progress_bars(False):
        http_get(location, target, resume_size=there, headers=headers, expected_size=file.size)


def check(listing: Listing, directory: Path) -> None:
    """Compare each file of a directory with the size and the sum that the repository lists. Takes seconds.

    A damaged file is removed, so that another download replaces it. Raises StartupError for the first one.
    """
    report, done = listener(), 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        report(Progress(CHECKING, done, listing.size, in_bytes=True))

    for file in listing.files:
        try:
            _check(file, directory / file.name, count)
        except FileNotFoundError:
            raise Interrupted(f"{file.name} is missing in {directory}; download {listing.model} again") from None


def gigabytes(count: int) -> str:
    """A number of bytes for people: 4.6 GB, 12.3 MB."""
    return f"{count / 10**9:,.1f} GB" if count >= 10**9 else f"{count / 10**6:,.1f} MB"


def _fetch_large(listing: Listing, entry: CacheEntry, token: str | None, *, small: bool = False) -> int:
    """Fetch the files that are missing and have a SHA-256, or all. Returns the bytes that are complete."""
    report, lock = listener(), threading.Lock()
    done = sum(entry.present(file) for file in listing.files)

    def count(size: int) -> None:
        nonlocal done
        with lock:
            done += size
        report(Progress(DOWNLOADING, max(0, min(done, listing.size)), listing.size, in_bytes=True))

    count(0)
    for file in listing.files:
        if (small or file.sha256) and not entry.complete(file):
            _fetch_with_retries(listing, file, entry, token, count)
    return sum(file.size for file in listing.files if entry.complete(file))


def _fetch_with_retries(
    listing: Listing, file: RemoteFile, entry: CacheEntry, token: str | None, on_bytes: Callable[[int], None]
) -> None:
    """Fetch a file, and continue it if its transfer breaks, which some versions of huggingface_hub do not."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _fetch_file(listing, file, entry, token, on_bytes)
        except StartupError:
            raise
        except Exception as error:
            if attempt == _ATTEMPTS or remedy_of(error, listing.model, listing.commit):
                raise
    return None


def _fetch_file(
    listing: Listing, file: RemoteFile, entry: CacheEntry, token: str | None, on_bytes: Callable[[int], None]
) -> None:
    partial = entry.partial(file)
    partial.parent.mkdir(parents=True, exist_ok=True)
    with _Partial(partial, on_bytes) as part:
        if not part.locked:
            return  # another process fetches it; huggingface_hub has the file, or fetches it, too
        there = min(partial.stat().st_size, file.size)
        if there < file.size:
            write_content(listing, file, part, there, token)
    try:
        _check(file, partial)
    except StartupError:
        on_bytes(-file.size)
        raise
    partial.replace(entry.path(file))


class _Partial(io.FileIO):
    """A file at whose end a download goes on. It counts bytes, and is locked if no other process has locked it."""

    def __init__(self, path: Path, on_bytes: Callable[[int], None]) -> None:
        super().__init__(path, "a+")
        self._on_bytes = on_bytes
        self.locked = True
        with suppress(ImportError):  # Windows has no fcntl
            import fcntl

            try:
                fcntl.flock(self, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self.locked = False

    def write(self, data: Any, /) -> int:
        view = memoryview(data)
        done = 0
        while done < len(view):
            done += super().write(view[done:]) or 0
        self._on_bytes(done)
        return done


def _check(file: RemoteFile, path: Path, on_bytes: Callable[[int], None] = lambda _: None) -> None:
    """Raises StartupError if the content is not the listed one, and removes the file then. Raises OSError."""
    size = path.stat().st_size
    begin = b"" if file.sha256 else f"blob {size}\0".encode()
    found = ""
    if size == file.size:
        found = digest_file(path, "sha256" if file.sha256 else "sha1", begin, on_bytes).hexdigest()
    if found == file.blob:
        return
    path.resolve().unlink()  # in the cache the file is a link
    path.unlink(missing_ok=True)
    kind = "SHA-256" if file.sha256 else "git id"
    what = f"has {size:,} bytes of {file.size:,}" if size != file.size else f"has the {kind} {found}, not {file.blob}"
    raise Interrupted(f"{file.name} is damaged: it {what}; it was removed, download again")
