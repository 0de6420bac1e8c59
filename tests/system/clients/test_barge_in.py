"""The programs of docs/barge-in.md, as they are written there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from support.servers.running import Server

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/barge-in.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = 200


def example(language: str, folder: Path, server: Server, *command: str) -> str:
    """The output of a program of the page, in a folder of its own."""
    (program,) = (text for marked, text in BLOCK.findall(PAGE) if marked == language)
    (folder / "program").write_text(re.sub(r"(127\.0\.0\.1|localhost):50051", server.address, program), "utf-8")
    done = subprocess.run([*command, "program"], cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return done.stdout


def test_the_voice_agent_knows_what_the_user_heard(server, tmp_path):
    (lines,) = re.findall(r"^ANSWER = \((.*)\)$", PAGE, re.MULTILINE)
    answer = "".join(re.findall(r'"(.*?)"', lines))
    output = example("python", tmp_path, server, sys.executable)
    found = re.match(r"the user heard: (.*)\nnot answered:(.*)\n$", output)
    assert found, output
    heard = found[1]
    assert answer.startswith(heard)
    assert not (heard[-1:] + answer[len(heard) :][:1]).isalnum() or not heard, "it ends with a word"
    assert found[2].split() in ([], ["answer"])


def test_grpcurl_interrupts_and_shows_what_was_heard(server, tmp_path):
    output = example("", tmp_path, server, "bash", "-eu")
    answer = json.loads(re.sub(r"\n *\},?\n.*", "\n}", output.partition(":")[2], flags=re.DOTALL))
    assert answer["tag"] == "stop"
    assert int(answer["sentSamples"]) > 24000
    text = "The museum opens at nine. It closes at six."
    heard = text[: answer["heardInputEnd"]]
    assert heard.split() == text.split()[: len(heard.split())] and heard
    assert answer["heardTurnIndex"] == 0
    said = (tmp_path / "replies.json").read_text("utf-8")
    assert '"flushDone"' in said
