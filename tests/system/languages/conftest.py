"""A server of each model, and the programs of the folder `clients`, built."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from support.clients.client_programs import LANGUAGES, ROOT, Program, copy_sources
from support.clients.model_calls import Call, call_of, keep_pairs, parametrize, serve
from support.servers.running import Server

if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))


pytest_generate_tests = parametrize
pytest_collection_modifyitems = keep_pairs


@pytest.fixture(scope="session")
def call(model: str) -> Call:
    return call_of(model)


@pytest.fixture(scope="session")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(model, tmp_path_factory.mktemp("server")) as running:
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


@pytest.fixture(params=LANGUAGES)  # of a test, so that pytest orders the tests by models, whose servers start once
def program(request: pytest.FixtureRequest, build: Callable[[str], Program]) -> Program:
    return build(request.param)
