"""The command that measures the delays of every script, on the tiny model."""

import json
import subprocess
import sys

from support.engines.checkpoints import TINY

from benchmarks.measuring.environment import ROOT

COMMAND = [sys.executable, "-m", "benchmarks.languages", "--model", str(TINY), "--max-steps", "2", "--timesteps", "4"]


def test_the_command_writes_a_row_for_each_language(tmp_path):
    table, page = tmp_path / "table.json", tmp_path / "page.md"
    shape = ["--languages", "ko,th", "--dialogues", "1", "--sentences", "2", "--turn", "1", "--pause", "0.5"]
    command = [*COMMAND, *shape, "--json", str(table), "--page", str(page)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300).stdout
    rows = json.loads(table.read_text())["rows"]
    assert [row["language"] for row in rows] == ["ko", "th"]
    for row in rows:
        assert row["dialogues"] == 1 and row["pause"]["count"] == 1 and row["pause"]["maximum"] > 0
    assert "ko|1|" in printed and "| th | 1 |" in page.read_text()


def test_a_language_without_texts_is_refused():
    refused = subprocess.run([*COMMAND, "--languages", "ko,xx"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert refused.returncode == 2 and "no texts for xx" in refused.stderr
