"""Sources of adapters, with a cache of their own and stores in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from support.engines.lora_adapters import FaultyFiles

from voxcpm_server.adapters.sources import LoraSources


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "adapters"


@pytest.fixture
def allow(cache: Path) -> Callable[..., LoraSources]:
    return lambda *roots: LoraSources([str(root) for root in roots], cache)


@pytest.fixture
def stored() -> Iterator[Callable[[str, Mapping[str, bytes]], None]]:
    """Writes files below a URL of memory."""
    MemoryFileSystem.store.clear()
    FaultyFiles.store.clear()
    FaultyFiles.reading, FaultyFiles.resumed, FaultyFiles.broken = threading.Event(), threading.Event(), OSError
    fsspec.register_implementation("faulty", FaultyFiles, clobber=True)

    def write(url: str, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            system, path = fsspec.core.url_to_fs(f"{url}/{name}")
            system.pipe_file(path, content)

    yield write
    FaultyFiles.resumed.set()
    MemoryFileSystem.store.clear()
    _registry.pop("faulty")
