"""Checkpoints of the released dimensions with random weights, made once for all GPU tests of a session."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "make_checkpoint.py"
_made: dict[str, Path] = {}


def _make(model: str, factory: pytest.TempPathFactory) -> Path:
    if model not in _made:
        directory = factory.mktemp("full") / f"{model.lower()}-random"
        command = [sys.executable, TOOL, directory, "--model", model, "--full-size", "--never-stop"]
        subprocess.run(command, check=True, timeout=300)
        _made[model] = directory
    return _made[model]


@pytest.fixture(scope="session")
def full_sizes(tmp_path_factory) -> Callable[[str], Path]:
    """Gives the directory of a released model, such as VoxCPM1.5."""
    return lambda model: _make(model, tmp_path_factory)


@pytest.fixture(scope="session")
def full_size(tmp_path_factory) -> Path:
    return _make("VoxCPM2", tmp_path_factory)
