"""LoRA adapters in directories and stores, and a store that fails."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.errors import VoxCPMError
from voxcpm_server.adapters.sources import LoraSources

CONFIG, WEIGHTS, LEGACY = "lora_config.json", "lora_weights.safetensors", "lora_weights.ckpt"
ADAPTER = {CONFIG: b'{"lora_config": {"r": 8}}', WEIGHTS: b"matrices"}
OTHER = {**ADAPTER, WEIGHTS: b"other matrices"}
SUM = hashlib.sha256(ADAPTER[WEIGHTS]).hexdigest()
LARGE_CONFIG = {**ADAPTER, CONFIG: b" " * (64 << 10) + b"{}"}


class FaultyFiles(MemoryFileSystem):
    """faulty://NAME/...: files in memory whose store fails, by its name."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}  # pyright: ignore[reportIncompatibleVariableOverride] - not that of memory://
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = False
    reading = threading.Event()  # set when the store `slow` is read
    resumed = threading.Event()
    broken: type[Exception] = OSError

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        if "absent" in path:
            raise type(self).broken("secret of the store")
        info = super().info(path, **options)
        return {**info, "size": None if "sizeless" in path else 1} if "lying" in path or "sizeless" in path else info

    def open(self, path: str, mode: str = "rb", *args: Any, **options: Any) -> Any:
        if mode == "rb" and path.endswith(WEIGHTS) and "broken" in path:
            return BreakingFile()
        if mode == "rb" and path.endswith(WEIGHTS) and "slow" in path:
            self.reading.set()
            assert self.resumed.wait(HANG_SECONDS)
        return super().open(path, mode, *args, **options)


class BreakingFile(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        if not self.tell():
            self.seek(1)
            return b"m"
        raise OSError("the connection of secret was reset")


def folder(path: Path, files: Mapping[str, bytes] = ADAPTER) -> Path:
    path.mkdir(parents=True)
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def left(cache: Path) -> list[str]:
    """The names in the cache."""
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


async def refusal(sources: LoraSources, source: object, sha256: str | None = None) -> VoxCPMError:
    with pytest.raises(VoxCPMError) as raised:
        await sources.fetch(str(source), sha256)
    assert "secret" not in raised.value.message
    return raised.value
