"""A server of the bundled voice, and the programs of the folder `clients`, built."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from support.client_programs import LANGUAGES, ROOT, Program, copy_sources
from support.servers import Server, serving

if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))


@dataclass(frozen=True)
class Call:
    """The call that every program makes."""

    text: str = "The train arrived ten minutes late."
    voice: str = "slt"


@pytest.fixture(scope="session")
def call() -> Call:
    return Call()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("voices"), model="demo") as running:
        yield running
        assert not running.fault()


@pytest.fixture(scope="session")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders `clients` and `protos`, as a user copies them."""
    folder = tmp_path_factory.mktemp("copied")
    copy_sources(folder)
    return folder


@pytest.fixture(scope="session")
def build(copies: Path) -> Callable[[str], Program]:
    """Builds the program of a language once."""
    return cache(lambda name: Program(name, copies / "clients" / name))


@pytest.fixture(scope="session", params=LANGUAGES)
def program(request: pytest.FixtureRequest, build: Callable[[str], Program]) -> Program:
    return build(request.param)
