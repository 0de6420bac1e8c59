"""The files of a LoRA adapter in the official format. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from voxcpm_grpc.errors import InvalidRequest, StartupError
from voxcpm_grpc.hub.digest import digest_file
from voxcpm_grpc.request import Adapter

CONFIG, WEIGHTS = "lora_config.json", "lora_weights.safetensors"
LEGACY = "lora_weights.ckpt"
"""A pickle, which is never read."""


def fingerprint(directory: Path) -> str:
    """32 hexadecimal digits, a hash of the content of an adapter; empty if a file is missing. Raises OSError."""
    combined = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        try:
            combined.update(digest_file(directory / name).digest())
        except (FileNotFoundError, NotADirectoryError):
            return ""
    return combined.hexdigest()[:32]


def require(directory: Path) -> None:
    """Raise InvalidRequest, for an operator, if a file is missing."""
    if not (directory / WEIGHTS).is_file() and (directory / LEGACY).is_file():
        raise InvalidRequest(
            f"it has only {LEGACY}, which is not read, because the objects of a pickle can run code; load it where you "
            f"trust it, and save its tensors with safetensors as {WEIGHTS}"
        )
    if missing := [name for name in (CONFIG, WEIGHTS) if not (directory / name).is_file()]:
        raise InvalidRequest(f"it has no {' and no '.join(missing)}; name the directory that the training wrote")


def describe(name: str, source: str, directory: Path) -> Adapter:
    """The adapter in a directory. Raises InvalidRequest, for an operator, if its files cannot be read."""
    try:
        content = _content(directory)
    except InvalidRequest as error:
        raise InvalidRequest(f"the LoRA adapter {name!r}: {error.message}", field="source") from None
    return Adapter(fingerprint=content, directory=str(directory), name=name, source=source)


def adapter_of(entry: str) -> Adapter:
    """The adapter of an entry NAME=DIRECTORY of the settings. Raises StartupError."""
    name, _, directory = entry.partition("=")
    if not name or not directory:
        raise StartupError(f"engine.loras has {entry!r}; write NAME=DIRECTORY")
    try:
        content = _content(Path(directory))
    except InvalidRequest as error:
        raise StartupError(f"the LoRA adapter {entry}: {error.message}") from None
    return Adapter(fingerprint=content, directory=directory, name=name, source=directory)


def adapters_of(entries: Iterable[str]) -> list[Adapter]:
    """The same as `adapter_of`, for several."""
    return [adapter_of(entry) for entry in entries]


def _content(directory: Path) -> str:
    """The fingerprint of an adapter. Raises InvalidRequest, for an operator, if its files cannot be read."""
    require(directory)
    try:
        return fingerprint(directory)
    except OSError:
        raise InvalidRequest("its files cannot be read; make them readable for the server") from None
