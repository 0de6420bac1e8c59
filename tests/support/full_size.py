"""A checkpoint of the released dimensions with random weights, made once for all GPU tests of a session."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "make_checkpoint.py"


@pytest.fixture(scope="session")
def full_size(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("full") / "voxcpm2-random"
    subprocess.run([sys.executable, TOOL, directory, "--full-size", "--never-stop"], check=True, timeout=300)
    return directory
