"""The top level of the repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = {"benchmarks", "clients", "docs", "protos", "server", "tests", "tools", "voxcpm_grpc"}
FILES = {
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "NOTICE", "README.md", "SECURITY.md"),
    *("buf.yaml", "pyproject.toml"),
}


def test_no_stray_file_is_committed():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    top = {Path(os.fsdecode(name)).parts[0] for name in listed.split(b"\0") if name}
    assert {name for name in top if not name.startswith(".")} == FOLDERS | FILES
