"""The commands themselves, on the demo model."""

import json
import subprocess
import sys

import pytest

from benchmarks.hardware import ROOT


def run(tmp_path, *words: str) -> dict:
    path = tmp_path / "table.json"
    command = [sys.executable, "-m", *words, "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text())


def test_engine(tmp_path):
    table = run(tmp_path, "benchmarks.engine", "--streams", "1,3", "--steps", "6", "--repeats", "1")
    assert table["command"].startswith("python -m benchmarks.engine --streams 1,3")
    assert {"voxcpm-grpc", "python", "torch", "device", "dtype"} <= table["versions"].keys()
    assert [row["streams"] for row in table["rows"]] == [1, 3]
    for row in table["rows"]:
        assert 0 < row["ttfb_p50_ms"] <= row["ttfb_p90_ms"] and 0 < row["step_p50_ms"] <= row["step_p99_ms"]
        assert row["audio_s_per_s"] > 0 and row["cached_prefix_tokens"] == 0 and 70 < row["prompt_tokens"] < 110


@pytest.mark.timeout(120)
def test_serving(tmp_path):
    loads = ("--closed", "2", "--closed-requests", "4", "--open", "20", "--requests", "6", "--clients", "2")
    table = run(tmp_path, "benchmarks.serving", *loads, "--steps", "4", "--timesteps", "4", "--chars", "40")
    closed, opened = table["rows"]
    assert (closed["loop"], closed["level"], closed["requests"]) == ("closed", 2, 8)
    assert (opened["loop"], opened["level"], opened["requests"]) == ("open", 20, 6)
    for row in table["rows"]:
        assert row["failed"] == row["refused"] == 0
        assert 0 < row["server_ttfb_p50_ms"] < row["ttfb_p50_ms"] <= row["ttfb_p99_ms"]
        assert row["audio_s_per_s"] > 0


def test_a_report_says_what_failed(tmp_path):
    """Without a GPU there are no ceilings and no trace; the engine's rows are there all the same."""
    words = (
        "benchmarks.report",
        "--model",
        "demo",
        "--name",
        "here",
        "--out",
        str(tmp_path),
        "--parts",
        "engine,trace",
    )
    shape = ("--streams", "1", "--steps", "5", "--repeats", "1", "--timesteps", "4", "--chars", "40")
    done = subprocess.run([sys.executable, "-m", *words, *shape], cwd=ROOT, capture_output=True, text=True, timeout=100)
    table = json.loads((tmp_path / "here.json").read_text())
    assert table.keys() == {"rows", "versions", "command"}
    assert table["rows"][0]["step_p50_ms"] > 0 and table["rows"][0]["floor_ms"] is None
    text = (tmp_path / "here.md").read_text()
    assert "## A burst" in text and "not measured in this run" in text
    if "trace:" in done.stderr:  # on a GPU it works
        assert done.returncode == 1 and not (tmp_path / "launches.json").exists()
