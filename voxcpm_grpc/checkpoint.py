"""Where a checkpoint is: the bundled voice, a directory, or a Hugging Face repository that is fetched once."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from voxcpm_grpc.errors import StartupError

FILES = (
    "config.json",
    "*.safetensors",
    "pytorch_model.bin",
    "*.pth",
    "tokenizer*.json",
    "special_tokens_map.json",
    "presets/presets.json",
    *(f"presets/*.{suffix}" for suffix in ("wav", "flac", "mp3", "ogg", "opus", "m4a")),
)
"""What is fetched of a repository: data only. Its Python files stay where they are."""

_NEEDED = (  # the loader checks what is inside; this much tells a checkpoint from another directory
    ("config.json",),
    ("tokenizer.json",),
    ("model.safetensors", "pytorch_model.bin"),
    ("audiovae.safetensors", "audiovae.pth"),
)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS}
_ATTEMPTS = 3  # some versions of huggingface_hub resume a broken transfer only when called again


def resolve(model: str, revision: str | None = None, cache_dir: Path | None = None, progress: bool = True) -> Path:
    """The directory of the checkpoint that `model` names, downloaded into `cache_dir` if need be.

    `model` is `demo`, a directory, or a repository id such as `openbmb/VoxCPM2`, of which `revision` picks a branch,
    tag or commit. A repository that was fetched before is served from the cache while the network is down. `progress`
    shows bars on stderr. Raises StartupError with the remedy when there is no complete checkpoint in the end.
    """
    if model == "demo":
        return _local(Path(__file__).parent / "demo", revision)
    path = Path.home() / model[2:] if model.startswith("~/") else Path(model)
    if model and _is_directory(path):
        return _local(path, revision)
    if _REPOSITORY.fullmatch(model):
        snapshot = _fetch(model, revision, cache_dir, progress)
        return _complete(snapshot, f"the repository {model}{f' at {revision}' if revision else ''}")
    raise StartupError(
        f"there is no directory {model!r}; name demo, a directory, or a Hugging Face repository such as openbmb/VoxCPM2"
    )


def _is_directory(path: Path) -> bool:
    try:
        if path.is_file():
            raise StartupError(f"{path} is a file; name the directory of the checkpoint")
        return path.is_dir()
    except OSError as error:
        raise StartupError(f"the model {path} cannot be read: {error.strerror}") from None


def _local(path: Path, revision: str | None) -> Path:
    if revision:
        raise StartupError(f"revision {revision} belongs to a repository, and the model {path} is a directory")
    return _complete(path, f"the directory {path}")


def _complete(path: Path, what: str) -> Path:
    missing = [" or ".join(names) for names in _NEEDED if not any((path / name).is_file() for name in names)]
    if missing:
        raise StartupError(f"{what} is not a complete VoxCPM checkpoint: it has no {', no '.join(missing)}")
    return path


def _fetch(model: str, revision: str | None, cache_dir: Path | None, progress: bool) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise StartupError(
            f"to download {model}, install huggingface_hub: pip install 'voxcpm-grpc[download]'"
        ) from None
    broken: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            with _progress_bars(progress):
                return Path(snapshot_download(model, revision=revision, cache_dir=cache_dir, allow_patterns=[*FILES]))
        except Exception as error:  # each version of huggingface_hub brings the errors of another HTTP library
            if remedy := _remedy(error, model, revision):
                raise StartupError(remedy) from error
            broken = error
    reason = str(broken).strip().partition("\n")[0]
    raise StartupError(
        f"downloading {model} failed {_ATTEMPTS} times, at last with {type(broken).__name__}: {reason}; try again "
        "later, files that arrived whole are kept"
    ) from broken


def _remedy(error: Exception, model: str, revision: str | None) -> str | None:
    """What is wrong and helps; None for a transfer that broke, which may go through when tried again."""
    from huggingface_hub import errors

    match error:
        case errors.GatedRepoError():
            return f"{model} is gated: accept its terms on its page, then log in with `hf auth login`"
        case errors.RepositoryNotFoundError():
            return (
                f"there is no directory and no repository {model}; check the spelling, and log in with `hf auth login` "
                "if it is private"
            )
        case errors.RevisionNotFoundError():
            return f"the repository {model} has no revision {revision}; name one of its branches, tags or commits"
        case errors.LocalEntryNotFoundError():
            return (
                f"{model} is not in the download cache, or not all of it, and its repository cannot be reached; check "
                "the network, or name a directory"
            )
        case errors.EntryNotFoundError():
            return f"a file that {model} lists cannot be fetched; its repository is damaged: name another revision"
        case OSError() if error.errno in _DISK:
            return (
                f"{model} cannot be written to the download cache: {error.strerror}; make room, or choose "
                "another place with --cache-dir"
            )
    return None


@contextmanager
def _progress_bars(shown: bool) -> Iterator[None]:
    """huggingface_hub has one switch for the whole process; leave it as it was."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
