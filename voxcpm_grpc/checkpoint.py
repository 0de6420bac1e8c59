"""Finds a checkpoint: the bundled voice, a directory, or a Hugging Face repository, which is downloaded once."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import re
from pathlib import Path
from typing import cast

from voxcpm_grpc import other_systems
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.hub.bars import DOWNLOADING as DOWNLOADING
from voxcpm_grpc.hub.digest import digest_file
from voxcpm_grpc.hub.download import (
    CacheEntry,
    Listing,
    fetch,
    fetch_copy,
    fetch_file,
    list_files,
    read_file,
    require_space,
)
from voxcpm_grpc.machine.home import expanded
from voxcpm_grpc.models.families import FAMILIES, family_of, likely_family, recognizing

FILES = (
    "config.json",
    "languages.json",
    *dict.fromkeys(pattern for family in FAMILIES for pattern in family.patterns),
    "presets/presets.json",
    *(f"presets/*.{suffix}" for suffix in ("wav", "flac", "mp3", "ogg", "opus", "m4a")),
)
"""The files of a repository that are downloaded: data only, no code."""

LANGUAGES_FILE = "languages.json"
LANGUAGES = {
    "openbmb/VoxCPM2": (
        *("ar", "da", "de", "el", "en", "es", "fi", "fr", "he", "hi", "id", "it", "ja", "km", "ko"),
        *("lo", "ms", "my", "nl", "no", "pl", "pt", "ru", "sv", "sw", "th", "tl", "tr", "vi", "zh"),
    ),
    **dict.fromkeys(("openbmb/VoxCPM1.5", "openbmb/VoxCPM-0.5B"), ("en", "zh")),
}
"""The languages that published models claim to speak, by repository; their checkpoints do not say."""

_TAG = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve(model: str, revision: str | None = None, cache_dir: Path | None = None, progress: bool = True) -> Path:
    """The directory of the checkpoint `model`, downloaded into `cache_dir` if necessary.

    `model` is `demo`, a directory, or a repository id such as `openbmb/VoxCPM2`. `revision` is a branch, tag or commit
    of the repository. Without a network, a repository that was downloaded before is read from the cache. `progress`
    shows progress bars on stderr; without it the download reports its progress, see `voxcpm_grpc.progress`. Raises
    StartupError, with the remedy, if there is no complete checkpoint.
    """
    if model == "demo":
        return _local(_bundled_voice(), revision)
    path = expanded(model)
    if model and _is_directory(path):
        return _local(path, revision)
    if _REPOSITORY.fullmatch(model):
        return fetched(model, revision, cache_dir, list_repository(model, revision), bars=progress)
    raise StartupError(
        f"there is no directory {model!r}; use demo, a directory, or a Hugging Face repository such as openbmb/VoxCPM2"
    )


def list_repository(model: str, revision: str | None = None, token: str | None = None) -> Listing | None:
    """The files of a repository that a download fetches; None if it cannot be reached now.

    Raises StartupError, also for a model of another system if the hub tells it.
    """
    _require_hub(model)
    listing = list_files(model, revision, FILES, token)
    tells = listing is not None and listing.config.get("model_type") in other_systems.TYPES  # a part of the file may do
    if listing is not None and tells and not recognizing(listing.config):
        other_systems.refuse(f"the repository {model}", listing.config, listing.names)
    return listing


def fetched(
    model: str,
    revision: str | None,
    cache_dir: Path | None,
    listing: Listing | None,
    *,
    token: str | None = None,
    bars: bool = False,
) -> Path:
    """The directory of a repository in the cache, downloaded as `listing` says. Raises StartupError."""
    if listing is not None:
        _inspect(listing, CacheEntry.of(listing, cache_dir, None), token)
    snapshot = fetch(model, revision, FILES, cache_dir, token=token, listing=listing, bars=bars)
    return _complete(snapshot, f"the repository {model}{f' at {revision}' if revision else ''}")


def copied(listing: Listing, folder: Path, *, token: str | None = None) -> Path:
    """The directory `folder` with the files of a repository, downloaded if they are not there. Raises StartupError."""
    _inspect(listing, CacheEntry.of(listing, None, folder), token)
    fetch_copy(listing, folder, token)
    return _complete(folder, f"the repository {listing.model}")


def _inspect(listing: Listing, entry: CacheEntry, token: str | None) -> None:
    """Raise StartupError for a model of another system, before its weights are downloaded."""
    require_space(listing, entry)
    content = read_file(listing, "config.json", entry, token)
    config = other_systems.parsed(content)
    if not recognizing(config):
        other_systems.refuse(f"the repository {listing.model}", config, listing.names)


def config_directory(model: str, revision: str | None = None) -> Path:
    """A directory with the config.json of a model; of a repository, that file alone is downloaded.

    Raises StartupError.
    """
    if is_repository(model):
        _require_hub(model)
        return fetch_file(model, revision, "config.json").parent
    path = expanded(model)
    if model != "demo" and _is_directory(path):
        return path
    return resolve(model, revision)


def is_repository(model: str) -> bool:
    """True if `model` is a repository id, so that `resolve` needs the network and may take minutes."""
    return model != "demo" and not Path(model).exists() and bool(_REPOSITORY.fullmatch(model))


def fingerprint(directory: Path) -> str:
    """32 hexadecimal digits, a hash of the content of a checkpoint. Raises OSError.

    Takes seconds, and no time again in the same process while the files are unchanged.
    """
    combined = hashlib.sha256()
    for names in likely_family(directory).hashed:
        present = [name for name in names if (directory / name).is_file()]
        path = directory / (present or names)[0]
        found = path.stat()
        combined.update(_digest(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
    return combined.hexdigest()[:32]


@functools.lru_cache
def _digest(path: Path, *_: int) -> bytes:
    """The hash of a file. The numbers change with its content."""
    return digest_file(path).digest()


def languages(directory: Path, name: str = "") -> tuple[str, ...]:
    """The languages that a model claims to speak, as BCP 47 tags; empty if it makes no claim. Raises StartupError.

    They are the list in the directory's languages.json, or those known of the repository `name`.
    """
    try:
        listed: object = json.loads((directory / LANGUAGES_FILE).read_text("utf-8"))
    except FileNotFoundError:
        return LANGUAGES.get(name, ())
    except (OSError, ValueError) as error:
        raise StartupError(f"{LANGUAGES_FILE} of the model cannot be read: {error}") from None
    tags = cast("list[object]", listed) if isinstance(listed, list) else [None]
    if not all(isinstance(tag, str) and _TAG.fullmatch(tag) for tag in tags):
        raise StartupError(f'{LANGUAGES_FILE} of the model must be a list of BCP 47 tags, such as ["en", "pt-BR"]')
    return tuple(map(str, tags))


def _bundled_voice() -> Path:
    """The folder of the bundled voice: in a checkout, or of the distribution voxcpm-grpc-demo."""
    checkout = Path(__file__).parent / "demo"
    if (checkout / "config.json").is_file():
        return checkout
    spec = importlib.util.find_spec("voxcpm_grpc_demo")  # the package is a folder of data, without a module
    if spec is None or not spec.submodule_search_locations:
        raise StartupError(
            "the bundled voice is not installed; install it with `pip install voxcpm-grpc-demo` (in a checkout: "
            "`pip install ./voxcpm_grpc/demo`), or choose another model with --model"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _is_directory(path: Path) -> bool:
    try:
        if path.is_file():
            raise StartupError(f"{path} is a file; use the directory of the checkpoint")
        return path.is_dir()
    except OSError as error:
        raise StartupError(f"the model {path} cannot be read: {error.strerror}") from None


def _local(path: Path, revision: str | None) -> Path:
    if revision:
        raise StartupError(f"revision {revision} belongs to a repository, and the model {path} is a directory")
    return _complete(path, f"the directory {path}")


def _complete(path: Path, source: str) -> Path:
    """The path. Raises StartupError unless it has all required files, and for a model of another system."""
    config = other_systems.config_of(path)
    found = recognizing(config)
    if not found:
        other_systems.refuse_directory(source, path)
    family = likely_family(path) if len(found) == 1 or not config else family_of(path)[0]
    if missing := family.missing(lambda name: (path / name).is_file()):
        raise StartupError(f"{source} is not a complete {family.name} checkpoint: it has no {', no '.join(missing)}")
    return path


def _require_hub(model: str) -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise StartupError(f"to download {model}, install huggingface_hub: pip install 'voxcpm-grpc[download]'")
