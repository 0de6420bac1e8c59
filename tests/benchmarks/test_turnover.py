"""The load of streams that come and go, on the tiny model."""

import json
import subprocess
import sys

from support.engines.checkpoints import TINY
from support.servers.waiting import HANG_SECONDS

from benchmarks.measuring.environment import ROOT


def test_turnover(tmp_path):
    path = tmp_path / "table.json"
    shape = ("--users", "1,3", "--each", "2", "--rates", "40", "--requests", "5", "--min-steps", "3", "--steps", "6")
    command = [sys.executable, "-m", "benchmarks.engine.turnover", *shape, "--model", str(TINY), "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert [(row["loop"], row["level"]) for row in rows] == [("closed", 1), ("closed", 3), ("open", 40)]
    # The last answers of users may end together.
    assert rows[0]["requests"] == 2 and 6 <= rows[1]["requests"] <= 8 and rows[2]["requests"] == 5
    for row in rows:
        assert 0 < row["slot_p99_ms"] <= row["ttfb_p99_ms"] and 0 < row["ttfb_p50_ms"] <= row["ttfb_p95_ms"]
        assert 0 < row["gap_p50_ms"] <= row["gap_p99_ms"] and row["audio_s_per_s"] > 0
