"""The Python programs of pages of the documentation, as they are written there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.servers.waiting import HANG_SECONDS

DOCS = Path(__file__).parents[3] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def program(page: str) -> str:
    """The only program of a page."""
    (found,) = BLOCK.findall((DOCS / page).read_text("utf-8"))
    return found


def output_of(source: str, folder: Path) -> str:
    """The output of a program, in a folder of its own."""
    path = folder / "program.py"
    path.write_text(source, "utf-8")
    done = subprocess.run([sys.executable, path.name], cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
