"""Fetches LoRA adapters that admins register at run time: from directories, the Hugging Face Hub and URLs of fsspec.

The setting admin.lora_sources names the roots that adapters may come from. A download is stored in the cache under a
digest of its two files, so that it appears whole and equal adapters share one directory.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, Reason, StartupError, Unavailable, VoxCPMError
from voxcpm_grpc.hub import download as hub
from voxcpm_grpc.hub.errors import Interrupted, remedy_of
from voxcpm_grpc.lora_files import CONFIG, LEGACY, WEIGHTS
from voxcpm_server.adapters.cache import LoraCache, NewFile, sha256_of, storing

log = logging.getLogger(__name__)

MAX_CONFIG_BYTES = 64 << 10
MAX_WEIGHTS_BYTES = 4 << 30
MAX_SOURCE_CHARACTERS = 2048
RETRY_SECONDS = 5.0
SETTING = "admin.lora_sources"

_LIMITS: Mapping[str, int] = {CONFIG: MAX_CONFIG_BYTES, WEIGHTS: MAX_WEIGHTS_BYTES}  # bytes
_SHOWN = 10  # a message lists so many allowed roots
_PART = 4 << 20  # bytes read at once
_LOCAL = ("", "file", "local")  # directories have these schemes
_WORD = r"\w(?:[\w.-]{0,94}\w)?"
_REPOSITORY = re.compile(rf"({_WORD})/({_WORD})(?:@(\w[\w./+-]*))?", re.ASCII)
# A root allows all repositories, those of an owner, or one.
_REPOSITORIES = re.compile(rf"(?:({_WORD})/({_WORD})?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Address:
    """A source, or a root that allows the sources whose parts begin with its own.

    scheme: that of the URL; empty for a path
    parts: of a directory, with links resolved; else owner and name of a repository, or host and folders of a URL
    """

    scheme: str
    parts: tuple[str, ...]
    revision: str | None = None

    def allows(self, other: _Address) -> bool:
        return self.scheme == other.scheme and self.parts == other.parts[: len(self.parts)]


class LoraSources:
    """The sources of adapters that this server allows, and the directories of those that it has fetched."""

    def __init__(self, allowed: Sequence[str], cache: Path) -> None:
        """Removes what processes that have ended left in the cache. Raises StartupError for a root that is not valid.

        allowed: directories; `hf://`, `hf://OWNER/` or `hf://OWNER/NAME`; URLs of fsspec such as `s3://bucket/folder`.
            An empty sequence allows nothing.
        cache: the directory of downloads; it is created by the first one
        """
        for root in allowed:
            _root(root)
        self._allowed = tuple(allowed)
        self._cache = LoraCache(cache)

    async def fetch(self, source: str, sha256: str | None = None) -> Path:
        """The directory with the files of an adapter, downloaded unless the source is a directory of this host.

        source: as in `allowed`; a repository as `hf://OWNER/NAME` or `hf://OWNER/NAME@REVISION`
        sha256: of lora_weights.safetensors, in 64 hexadecimal digits; None if any content will do

        Raises InvalidRequest, FailedPrecondition if the server does not allow or cannot use the source, and Unavailable
        for a broken download. If the call is cancelled, the download stops and leaves nothing.
        """
        stopped = threading.Event()
        try:
            return await asyncio.to_thread(self._fetch, source, sha256, stopped)
        finally:
            stopped.set()

    def _fetch(self, source: str, sha256: str | None, stopped: threading.Event) -> Path:
        wanted = None if sha256 is None else sha256.lower()
        if wanted is not None and not re.fullmatch("[0-9a-f]{64}", wanted):
            raise InvalidRequest(
                f"sha256 has {len(wanted)} characters and must be 64 hexadecimal digits: the sum of {WEIGHTS}, as "
                "sha256sum prints it",
                field="sha256",
            )
        address = self._permitted(source)
        if address.scheme in _LOCAL:
            directory = Path(*address.parts)
            with _reporting(source, address, _directory_error):
                self._require_directory(source, directory, address.scheme)
                _require_digest(source, directory, wanted)
            return directory
        with self._cache.temporary() as folder:
            download = _download_repository if address.scheme == "hf" else _download_url
            download(source, address, folder, stopped)
            with storing():
                _require_digest(source, folder, wanted)
            return self._cache.keep(folder, tuple(_LIMITS))

    def _permitted(self, source: str) -> _Address:
        """The address of a source that is allowed. Raises InvalidRequest and FailedPrecondition."""
        _require_readable(source)
        if not self._allowed:
            raise FailedPrecondition(
                f"{source} is not allowed: {SETTING} is empty, so this server takes no adapters at run time; add the "
                f"directory, repository or URL of your adapters to {SETTING}",
                field="source",
                reason=Reason.LORA_SOURCE_NOT_ALLOWED,
                source=source,
            )
        roots = [_root(root) for root in self._allowed]
        address = _address(source, {root.parts[0] for root in roots if root.parts})
        if not any(root.allows(address) for root in roots):
            shown = ", ".join(self._allowed[:_SHOWN])
            more = f" and {len(self._allowed) - _SHOWN} more" if len(self._allowed) > _SHOWN else ""
            raise FailedPrecondition(
                f"{source} is not allowed: it is not below {shown}{more}; move the adapter there, or add its source to "
                f"{SETTING}",
                field="source",
                reason=Reason.LORA_SOURCE_NOT_ALLOWED,
                source=source,
            )
        return address

    def _require_directory(self, source: str, directory: Path, scheme: str) -> None:
        """Raises InvalidRequest or FailedPrecondition unless both files are here; raises OSError."""
        if not directory.is_dir():
            raise InvalidRequest(f"{source} is not a directory of this server; check the spelling", field="source")
        roots = [_root(root) for root in self._allowed]
        for name in _LIMITS:
            target = _Address(scheme, _resolved(str(directory / name)))
            if not any(root.allows(target) for root in roots):
                raise FailedPrecondition(
                    f"{name} of {source} is a link to a file that is not below a directory of {SETTING}; copy the file "
                    "into the directory of the adapter",
                    field="source",
                    reason=Reason.LORA_SOURCE_NOT_ALLOWED,
                    source=source,
                )
        present = [name for name in (*_LIMITS, LEGACY) if (directory / name).is_file()]
        _require_files(source, {name: (directory / name).stat().st_size for name in present})


def _root(root: str) -> _Address:
    """The address of an allowed root. Raises StartupError."""
    scheme, separator, rest = root.partition("://")
    try:
        _require_readable(root)
        if separator and scheme == "hf":
            if not (match := _REPOSITORIES.fullmatch(rest)) or ".." in rest or "--" in rest:
                raise InvalidRequest("write hf://, hf://OWNER/ or hf://OWNER/NAME")
            return _Address(scheme, tuple(filter(None, match.groups())))
        address = _address(root, {rest.partition("/")[0]})
    except InvalidRequest as error:
        raise StartupError(f"{SETTING} has the root {root!r}, which is not valid: {error.message}") from None
    if address.scheme in _LOCAL:
        return address
    if not address.parts and scheme != "memory":
        raise StartupError(f"{SETTING} has the root {root!r}, which names no bucket or host; write {root}NAME")
    if ":" in rest.partition("@")[0] and "@" in rest.partition("/")[0]:
        raise StartupError(
            f"{SETTING} has a root of {scheme}:// with a password; remove it, and give it to the server in its "
            "environment"
        )
    from fsspec.registry import known_implementations, registry

    if scheme not in known_implementations and scheme not in registry:
        raise StartupError(f"{SETTING} has the root {root!r}, and fsspec has no filesystem for {scheme}://")
    return address


def _require_readable(source: str) -> None:
    if not source or not source.isprintable():
        raise InvalidRequest("source is empty or has control characters; name a directory or a URL", field="source")
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise InvalidRequest(
            f"source has {len(source):,} characters and at most {MAX_SOURCE_CHARACTERS:,} are allowed; use a shorter "
            "path or URL",
            field="source",
        )


def _address(source: str, hosts: set[str]) -> _Address:
    """The parts of a source. Raises InvalidRequest.

    hosts: those of the roots; another one must not contain a user name, which would reach logs
    """
    if "::" in source:
        raise InvalidRequest(f"{source} is a chain of filesystems; name a single one, without ::", field="source")
    scheme, separator, rest = source.partition("://")
    if not separator:
        return _Address("", _resolved(source))
    if scheme in _LOCAL:
        if not rest.startswith("/"):
            raise InvalidRequest(f"{source} has no absolute path; write {scheme}:///PATH", field="source")
        return _Address(scheme, _resolved(rest))
    if scheme == "hf":
        match = _REPOSITORY.fullmatch(rest)
        if not match or ".." in rest or "--" in f"{match[1]}/{match[2]}":
            raise InvalidRequest(
                f"{source} does not name a repository; write hf://OWNER/NAME or hf://OWNER/NAME@REVISION",
                field="source",
            )
        return _Address(scheme, (match[1], match[2]), match[3])
    host = rest.partition("/")[0]
    if "@" in host and host not in hosts:
        raise InvalidRequest(
            "source has a user name or a password before its host; remove them, the server takes credentials from its "
            "environment",
            field="source",
        )
    if "?" in rest or "#" in rest:
        raise InvalidRequest(
            "source has a query or a fragment, which are not allowed; remove what follows ? or #", field="source"
        )
    parts = tuple(rest.removesuffix("/").split("/")) if rest else ()
    if wrong := [part for part in parts if unquote(part) in ("", ".", "..") or re.search(r"[\\/]", unquote(part))]:
        raise InvalidRequest(
            f"{source} has the segment {wrong[0]!r}; write the URL without empty segments, '.', '..' and backslashes",
            field="source",
        )
    return _Address(scheme, parts)


def _resolved(path: str) -> tuple[str, ...]:
    """The parts of a path without links. Raises InvalidRequest."""
    try:
        return Path(path).resolve().parts
    except (OSError, RuntimeError):
        raise InvalidRequest(
            "source has links that lead in a circle; name the directory itself", field="source"
        ) from None


def _require_files(source: str, sizes: Mapping[str, int]) -> None:
    """Raises InvalidRequest unless an adapter has its two files, within their limits.

    sizes: in bytes, by name, of the files that exist; 0 if a size is not known
    """
    if WEIGHTS not in sizes and LEGACY in sizes:
        raise InvalidRequest(
            f"{source} has only {LEGACY}, which is not read, because the objects of a pickle can run code; load it "
            f"where you trust it, and save its tensors with safetensors as {WEIGHTS}",
            field="source",
        )
    if missing := [name for name in _LIMITS if name not in sizes]:
        raise InvalidRequest(
            f"{source} has no {' and no '.join(missing)}; name the directory that the training wrote", field="source"
        )
    for name, limit in _LIMITS.items():
        if sizes[name] > limit:
            raise _too_large(source, name, f"{sizes[name]:,}")


def _too_large(source: str, name: str, size: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} of {source} has {size} bytes and at most {_LIMITS[name]:,} are allowed; name a LoRA adapter, not a "
        "whole model",
        field="source",
    )


def _require_digest(source: str, folder: Path, wanted: str | None) -> None:
    """Raises InvalidRequest if the weights have another SHA-256 than `wanted`; raises OSError."""
    if wanted is not None and (found := sha256_of(folder / WEIGHTS)) != wanted:
        raise InvalidRequest(
            f"{WEIGHTS} of {source} has the SHA-256 {found}, not {wanted}; check that the source is the adapter you "
            "mean, then correct sha256 or the file",
            field="sha256",
        )


def _new_file(source: str, folder: Path, name: str, stopped: threading.Event) -> NewFile:
    limit = _LIMITS[name]
    return NewFile(folder / name, limit, stopped, _too_large(source, name, f"more than {limit:,}"))


def _download_repository(source: str, address: _Address, folder: Path, stopped: threading.Event) -> None:
    model = "/".join(address.parts)
    with _reporting(source, address, _hub_error):
        listing = hub.list_files(model, address.revision, (*_LIMITS, LEGACY), None)
        if listing is None:
            raise Unavailable(
                f"{source} cannot be fetched: the Hugging Face Hub cannot be reached; check the network and retry",
                retry_after=RETRY_SECONDS,
                reason=Reason.LORA_SOURCE_UNREACHABLE,
                source=source,
            )
        _require_files(source, {file.name: file.size for file in listing.files})
        listing = hub.Listing(model, listing.commit, tuple(file for file in listing.files if file.name in _LIMITS))
        for file in listing.files:
            with _new_file(source, folder, file.name, stopped) as target:
                hub.write_content(listing, file, target)
        hub.check(listing, folder)


def _download_url(source: str, address: _Address, folder: Path, stopped: threading.Event) -> None:
    with _reporting(source, address, _store_error):
        import fsspec

        url = f"{address.scheme}://{'/'.join(address.parts)}"
        files, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
        found = {name: _size(files, f"{path}/{name}") for name in (*_LIMITS, LEGACY)}
        _require_files(source, {name: size for name, size in found.items() if size is not None})
        for name in _LIMITS:
            with _new_file(source, folder, name, stopped) as target, files.open(f"{path}/{name}", "rb") as content:
                while part := content.read(_PART):
                    target.write(part)


def _size(files: Any, path: str) -> int | None:
    """The bytes of a file of a filesystem, 0 if it does not say; None if there is no such file."""
    try:
        info = files.info(path)
    except FileNotFoundError:
        return None
    return int(info.get("size") or 0) if info.get("type") == "file" else None


@contextmanager
def _reporting(
    source: str, address: _Address, explain: Callable[[str, _Address, Exception], VoxCPMError]
) -> Iterator[None]:
    """Turn errors of the block, except those for callers, into the ones of `explain`. The log has the error."""
    try:
        yield
    except VoxCPMError:
        raise
    except Exception as error:  # filesystems raise their own exceptions, and not all of them are OSErrors
        log.warning("LoRA adapter %s: cannot fetch it: %s: %s", source, type(error).__name__, error)
        raise explain(source, address, error) from None


def _directory_error(source: str, address: _Address, error: Exception) -> VoxCPMError:
    return _refused(source, "cannot be read by the server; give it permission to read the directory and its files")


def _refused(source: str, why: str) -> FailedPrecondition:
    return FailedPrecondition(f"{source} {why}", field="source", reason=Reason.LORA_SOURCE_REFUSED, source=source)


def _hub_error(source: str, address: _Address, error: Exception) -> VoxCPMError:
    if isinstance(error, ImportError):
        return FailedPrecondition(
            f"{source} needs huggingface_hub on the server; install it there: pip install 'voxcpm-grpc[download]'",
            field="source",
            reason=Reason.PACKAGE_MISSING,
            extra="download",
        )
    if isinstance(error, StartupError) and not isinstance(error, Interrupted):
        return _refused(source, f"cannot be fetched: {error}")
    if remedy := remedy_of(error, "/".join(address.parts), address.revision):
        return _refused(source, f"cannot be fetched: {remedy}")
    return Unavailable(
        f"{source} cannot be fetched: the download was broken off, or its content is damaged; check the network, and "
        "retry",
        retry_after=RETRY_SECONDS,
        reason=Reason.LORA_SOURCE_UNREACHABLE,
        source=source,
    )


def _store_error(source: str, address: _Address, error: Exception) -> VoxCPMError:
    match error:
        case ImportError():
            from fsspec.registry import known_implementations as known

            needed = known.get(address.scheme, {}).get("err", f"install the filesystem of fsspec for {address.scheme}")
            return _refused(source, f"needs a package on the server: {needed}")
        case FileNotFoundError():
            return InvalidRequest(f"{source} was removed while it was read; check the source", field="source")
        case PermissionError():
            return _refused(
                source,
                "may not be read with the server's credentials; give the server, in its environment, credentials that "
                "may read it",
            )
    return Unavailable(
        f"{source} cannot be fetched: its store does not answer as it should; check the server's network and its "
        "credentials for the store, and retry; the server's log has the cause",
        retry_after=RETRY_SECONDS,
        reason=Reason.LORA_SOURCE_UNREACHABLE,
        source=source,
    )
