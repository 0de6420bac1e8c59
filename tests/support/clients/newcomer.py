"""The computer of a newcomer: environments without compilers, in which programs of the project run."""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
SECONDS = 600
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def readme(language: str, *words: str) -> str:
    """The blocks of the README in a language ("" for the shell) that contain one of these words."""
    blocks = BLOCK.findall((ROOT / "README.md").read_text("utf-8"))
    chosen = [text for kind, text in blocks if kind == language and any(word in text for word in words)]
    assert len(chosen) == len(words), "the README has other commands now"
    return "\n".join(chosen)


@dataclass(frozen=True)
class Newcomer:
    """A copy of the checkout, a virtual environment, and a shell in which it is active.

    checkout: the working directory
    venv: empty at first
    env: has no compilers; `compilers` lists those that a program has tried to run
    """

    checkout: Path
    venv: Path
    env: Mapping[str, str]
    compilers: Path

    def run(self, *command: str | Path, env: Mapping[str, str] | None = None, text: str = "") -> Result:
        """Run a program with `text` as its stdin."""
        start = time.monotonic()
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            done = subprocess.run(
                command,
                cwd=self.checkout,
                env={**self.env, **(env or {})},
                input=text,
                stdout=output,
                stderr=errors,
                text=True,
                timeout=SECONDS,
            )
            output.seek(0)
            errors.seek(0)
            return Result(done.returncode, output.read(), errors.read(), time.monotonic() - start)

    def shell(self, script: str) -> str:
        """The output of a script that succeeds. What it left in the background goes on."""
        done = self.run("bash", "-euo", "pipefail", "-c", script)
        assert done.code == 0, f"{script}\n{done.output[-5000:]}\n{done.errors[-5000:]}"
        return done.output


@dataclass(frozen=True)
class Result:
    """Status, stdout and stderr of a program, and the seconds that it took."""

    code: int
    output: str
    errors: str
    seconds: float


@dataclass(frozen=True)
class Served:
    """A server in the newcomer's environment."""

    address: str
    process: subprocess.Popen[bytes]
    output: Path
    errors: Path

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # SIGTERM waits for load balancers
            self.process.wait(SECONDS)
