"""The Makefile's lists of tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_gpu_test_is_in_a_folder_that_test_gpu_runs():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    [names] = re.findall(r"^GPU_TESTS = \$\(addprefix tests/,(.*)\)$", makefile, re.MULTILINE)
    run = [ROOT / "tests" / name for name in names.split()]
    assert all(path.exists() for path in run)
    tests = [
        path for path in (ROOT / "tests").rglob("test_*.py") if re.search(r"\bmark\.gpu\b", path.read_text("utf-8"))
    ]
    assert len(tests) > 20
    elsewhere = [path for path in tests if not any(path.is_relative_to(one) for one in run)]
    assert elsewhere == []
