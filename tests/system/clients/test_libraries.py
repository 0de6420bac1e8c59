"""The program of the documentation for Node. Other languages are in the suite languages."""

from __future__ import annotations

import re
import subprocess
import wave
from pathlib import Path

from support.servers.waiting import HANG_SECONDS

ROOT = Path(__file__).parents[3]
PROTOS = ROOT / "protos"


def run(*command: str | Path, folder: Path = ROOT) -> bytes:
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_node_as_the_documentation_says(server, tmp_path):
    (program,) = re.findall(r"```js\n(.*?)```", (ROOT / "docs/other-languages.md").read_text("utf-8"), re.DOTALL)
    assert "defaults: true" in program
    (tmp_path / "hello.js").write_text(program.replace("127.0.0.1:50051", server.address), "utf-8")
    (tmp_path / "protos").symlink_to(PROTOS)
    assert run("node", "hello.js", folder=tmp_path) == b"voice miles at 24000 Hz\n"
    with wave.open(str(tmp_path / "hello-node.wav")) as file:
        assert 24000 * 0.5 < len(file.readframes(24000 * 60)) / 2 < 24000 * 5
