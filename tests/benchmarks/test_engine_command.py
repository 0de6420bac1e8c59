"""One command itself, on the tiny model. The others are in tests/system/benchmarks."""

import json
import subprocess
import sys

from support.engines.checkpoints import TINY
from support.servers.waiting import HANG_SECONDS

from benchmarks.measuring.environment import ROOT


def test_engine(tmp_path):
    path = tmp_path / "table.json"
    shape = ("--streams", "1,3", "--steps", "6", "--repeats", "1")
    command = [sys.executable, "-m", "benchmarks.engine", *shape, "--model", str(TINY), "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    table = json.loads(path.read_text())
    assert table["command"].startswith("python -m benchmarks.engine --streams 1,3")
    assert {"voxcpm-grpc", "python", "torch", "device", "dtype"} <= table["versions"].keys()
    assert [row["streams"] for row in table["rows"]] == [1, 3]
    for row in table["rows"]:
        assert 0 < row["ttfb_p50_ms"] <= row["ttfb_p90_ms"] and 0 < row["step_p50_ms"] <= row["step_p99_ms"]
        assert row["audio_s_per_s"] > 0 and row["cached_prefix_tokens"] == 0 and 70 < row["prompt_tokens"] < 110
