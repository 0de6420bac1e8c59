"""The command that measures delays and silences of text that is written slowly, on the tiny model."""

import importlib.util
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from support.engines.checkpoints import TINY

from benchmarks.dialogue import page
from benchmarks.measuring.environment import ROOT


def run(tmp_path: Path, *words: str, status: int = 0) -> dict:
    """Run the command on the tiny model, with segments of 4 steps, and return its table."""
    path = tmp_path / "table.json"
    small = ("--sentences", "2", "--max-steps", "4", "--timesteps", "4", "--clients", "1")
    command = [sys.executable, "-m", "benchmarks.dialogue", "--model", str(TINY), *small, *words, "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(path.read_text())


def test_the_command_writes_a_row_for_each_schedule_and_stream_count(tmp_path):
    markdown, picture = tmp_path / "page.md", tmp_path / "picture.png"
    files = ["--page", str(markdown)]
    if importlib.util.find_spec("matplotlib"):
        files += ["--plot", str(picture)]
    table = run(tmp_path, "--words", "20,once", "--streams", "1,2", "--dialogues", "2", *files)
    assert [(row["schedule"], row["streams"]) for row in table["rows"]] == [
        ("20", 1),
        ("once", 1),
        ("20", 2),
        ("once", 2),
    ]
    for row in table["rows"]:
        assert row["dialogues"] == 2 and not row["codes"] and row["segments"] == 4
        assert 0 < row["engine"]["p50_ms"] < row["delay"]["p50_ms"] <= row["delay"]["max_ms"]
        assert row["between"]["all"]["count"] == 2 and row["wall"]["p50_ms"] > 0
        assert 0 <= row["sending_lag_p99_ms"] < 5000
    assert all(row["unavoidable"]["max_ms"] == 0 for row in table["rows"] if row["schedule"] == "once")
    assert [one["schedule"] for one in table["examples"]] == ["20", "once", "20", "once"]
    for one in table["examples"]:
        assert len({part["segment"] for part in one["played"]}) == 2
        assert sum(part["end"] - part["begin"] for part in one["played"]) == pytest.approx(2 * 4 * 0.16)
        assert all(before["end"] <= after["begin"] for before, after in pairwise(one["played"]))
    text = markdown.read_text()
    assert "| 20 | 1 | 2 |" in text and "| all at once | 2 | 2 |" in text
    assert picture.exists() == ("![](picture.png)" in text)


def test_failed_calls_are_reported_by_their_codes(tmp_path):
    table = run(tmp_path, "--words", "once", "--streams", "1", "--dialogues", "2", "--voice", "nobody", status=1)
    (row,) = table["rows"]
    assert row["dialogues"] == 0 and row["codes"] == {"NOT_FOUND": 2} and table["examples"] == []
    assert "NOT_FOUND 2" in page.render(table, None)
