"""Finds a checkpoint: the bundled voice, a directory, or a Hugging Face repository, which is downloaded once."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.progress import Progress, listener

DOWNLOADING = "the model is being downloaded"
"""The step of a start in which a download reports its progress."""

FILES = (
    "config.json",
    "*.safetensors",
    "pytorch_model.bin",
    "*.pth",
    "tokenizer*.json",
    "special_tokens_map.json",
    "languages.json",
    "presets/presets.json",
    *(f"presets/*.{suffix}" for suffix in ("wav", "flac", "mp3", "ogg", "opus", "m4a")),
)
"""The files of a repository that are downloaded: data only, no code."""

MODEL_FILES = ("model.safetensors", "pytorch_model.bin", "pytorch_model.pth")
"""The names of the file with the weights of the networks, in the order of preference."""

CODEC_FILES = ("audiovae.safetensors", "audiovae.pth")
"""The names of the file with the weights of the codec, in the order of preference."""

LANGUAGES_FILE = "languages.json"
LANGUAGES = {
    "openbmb/VoxCPM2": (
        *("ar", "da", "de", "el", "en", "es", "fi", "fr", "he", "hi", "id", "it", "ja", "km", "ko"),
        *("lo", "ms", "my", "nl", "no", "pl", "pt", "ru", "sv", "sw", "th", "tl", "tr", "vi", "zh"),
    )
}
"""The languages that published models claim to speak, by repository; their checkpoints do not say."""

_TAG = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
_REQUIRED = (  # enough to recognize a checkpoint; the loader checks the content of the files
    ("config.json",),
    ("tokenizer.json",),
    MODEL_FILES[:2],
    CODEC_FILES,
)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS}
_ATTEMPTS = 3  # some versions of huggingface_hub resume a broken transfer only in another call


def resolve(model: str, revision: str | None = None, cache_dir: Path | None = None, progress: bool = True) -> Path:
    """The directory of the checkpoint `model`, downloaded into `cache_dir` if necessary.

    `model` is `demo`, a directory, or a repository id such as `openbmb/VoxCPM2`. `revision` is a branch, tag or commit
    of the repository. Without a network, a repository that was downloaded before is read from the cache. `progress`
    shows progress bars on stderr; without it the download reports its progress, see `voxcpm_grpc.progress`. Raises
    StartupError, with the remedy, if there is no complete checkpoint.
    """
    if model == "demo":
        return _local(_bundled_voice(), revision)
    path = Path.home() / model[2:] if model.startswith("~/") else Path(model)
    if model and _is_directory(path):
        return _local(path, revision)
    if _REPOSITORY.fullmatch(model):
        snapshot = _fetch(model, revision, cache_dir, progress)
        return _complete(snapshot, f"the repository {model}{f' at {revision}' if revision else ''}")
    raise StartupError(
        f"there is no directory {model!r}; use demo, a directory, or a Hugging Face repository such as openbmb/VoxCPM2"
    )


def is_repository(model: str) -> bool:
    """True if `model` is a repository id, so that `resolve` needs the network and may take minutes."""
    return model != "demo" and not Path(model).exists() and bool(_REPOSITORY.fullmatch(model))


def fingerprint(directory: Path) -> str:
    """32 hexadecimal digits, a hash of the content of a checkpoint. Takes seconds. Raises OSError."""
    combined = hashlib.sha256()
    for names in (("config.json",), ("tokenizer.json",), MODEL_FILES, CODEC_FILES):
        present = [name for name in names if (directory / name).is_file()]
        with (directory / (present or names)[0]).open("rb") as file:
            combined.update(hashlib.file_digest(file, "sha256").digest())
    return combined.hexdigest()[:32]


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
    spec = importlib.util.find_spec("voxcpm_grpc_demo")  # a folder of data, without a module
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
    """The path. Raises StartupError unless it has all required files."""
    missing = [" or ".join(names) for names in _REQUIRED if not any((path / name).is_file() for name in names)]
    if missing:
        raise StartupError(f"{source} is not a complete VoxCPM checkpoint: it has no {', no '.join(missing)}")
    return path


def _fetch(model: str, revision: str | None, cache_dir: Path | None, progress: bool) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise StartupError(
            f"to download {model}, install huggingface_hub: pip install 'voxcpm-grpc[download]'"
        ) from None
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            with _progress_bars(progress):
                bars = None if progress else _reporting_bars()
                return Path(
                    snapshot_download(
                        model, revision=revision, cache_dir=cache_dir, allow_patterns=[*FILES], tqdm_class=bars
                    )
                )
        except Exception as error:  # versions of huggingface_hub raise errors of different HTTP libraries
            if remedy := _remedy(error, model, revision):
                raise StartupError(remedy) from error
            failure = error
    reason = str(failure).strip().partition("\n")[0]
    raise StartupError(
        f"downloading {model} failed {_ATTEMPTS} times, the last time with {type(failure).__name__}: {reason}; try "
        "again later, complete files are kept"
    ) from failure


def _remedy(error: Exception, model: str, revision: str | None) -> str | None:
    """The cause of an error and its remedy; None for a broken transfer, which may succeed in another attempt."""
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
            return f"the repository {model} has no revision {revision}; use one of its branches, tags or commits"
        case errors.LocalEntryNotFoundError():
            return (
                f"{model} is not in the download cache, or not all of it, and its repository cannot be reached; check "
                "the network, or use a directory"
            )
        case errors.EntryNotFoundError():
            return f"a file that {model} lists cannot be fetched; its repository is damaged: use another revision"
        case OSError() if error.errno in _DISK:
            return (
                f"{model} cannot be written to the download cache: {error.strerror}; free some space, or choose "
                "another directory with --cache-dir"
            )
    return None


def _reporting_bars() -> type[Any]:
    """A class of progress bars that print nothing and report the bytes of a download to this context.

    Versions of huggingface_hub that count files only make no bar of bytes; then files are reported.
    """
    from tqdm.auto import tqdm

    receive, lock = listener(), threading.Lock()
    bars: list[Any] = []

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            self.in_bytes = options.get("unit") == "B"
            options.pop("name", None)
            super().__init__(*args, **{**options, "disable": True})
            bars.append(self)

        def update(self, n: float | None = 1) -> None:
            with lock:
                self.n += n or 0
                most = max(bars, key=lambda bar: (bar.in_bytes and bar.n > 0, bar.n))
                receive(Progress(DOWNLOADING, int(most.n), int(most.total or 0), in_bytes=most.in_bytes))

    return Bar


@contextmanager
def _progress_bars(shown: bool) -> Iterator[None]:
    """Hides the progress bars unless `shown`. The switch of huggingface_hub is global, so it is reset afterwards."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
