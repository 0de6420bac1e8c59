"""Two checkouts are compared by runs in turns, row by row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.paired import compare, numbers

ROOT = Path(__file__).parents[2]
STUB = """
import argparse, json, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--json", type=pathlib.Path)
parser.add_argument("--streams", default="1")
chosen = parser.parse_args()
counts = map(int, chosen.streams.split(","))
rows = [{"name": "long", "streams": count, "step_ms": STEP * count, "late": 0} for count in counts]
chosen.json.write_text(json.dumps({"rows": rows}))
with open("runs", "a") as file:
    file.write("x")
"""

PAIRS = ((10.0, 11.0), (20.0, 22.0), (8.0, 40.0))


def checkout(folder: Path, step: float) -> Path:
    (folder / "benchmarks").mkdir(parents=True)
    (folder / "benchmarks" / "__init__.py").touch()
    (folder / "benchmarks" / "stub.py").write_text(STUB.replace("STEP", str(step)))
    return folder


def paired(base: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command of another checkout, whose `benchmarks.stub` is faster or slower."""
    here = checkout(base.parent / "here", 3.0)
    for name in ("paired.py", "measuring"):
        (here / "benchmarks" / name).symlink_to(ROOT / "benchmarks" / name)
    program = f"import benchmarks.paired as paired, pathlib; paired.ROOT = pathlib.Path({str(here)!r}); paired.main()"
    command = [sys.executable, "-c", program, str(base), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_runs_in_both_checkouts_give_a_ratio_for_each_row(tmp_path):
    base = checkout(tmp_path / "base", 2.0)
    done = paired(base, "--runs", "3", "--", "stub", "--streams", "1,8")
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()[1:]]
    assert table == [
        ["long", f"streams={count}", "step_ms", base_ms, here_ms, "1.500", "1.500", "to", "1.500"]
        for count, base_ms, here_ms in ((1, "2", "3"), (8, "16", "24"))
    ]
    assert [(folder / "runs").read_text() for folder in (base, tmp_path / "here")] == ["xxx", "xxx"]


@pytest.mark.parametrize(("limit", "code"), [("1.6", 0), ("1.4", 1)])
def test_a_ratio_above_the_limit_fails(tmp_path, limit, code):
    done = paired(checkout(tmp_path / "base", 2.0), "--runs", "1", "--limit", limit, "--", "stub")
    assert done.returncode == code
    assert ("1 of 1 ratios are above 1.4" in done.stderr) is bool(code)


def test_a_ratio_is_the_median_of_the_pairs_and_not_of_the_runs():
    """Each pair meets a host of its own speed."""
    pairs = [(numbers([{"users": 1, "ms": base}]), numbers([{"users": 1, "ms": here}])) for base, here in PAIRS]
    [found] = compare(pairs)
    assert found.ratio == pytest.approx(1.1) and (found.base, found.here) == (10.0, 22.0)


def test_columns_are_chosen_and_rows_that_a_checkout_lacks_are_left_out():
    base = numbers([{"users": 1, "ms": 2.0, "cpu": 1.0}, {"users": 4, "ms": 5.0, "cpu": 1.0}])
    here = numbers([{"users": 1, "ms": 3.0, "cpu": 1.0}])
    assert [(one.row, one.column) for one in compare([(base, here)], ["ms"])] == [("users=1", "ms")]
