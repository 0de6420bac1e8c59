"""The first hour of a newcomer: the commands of the README, as written, in a copy of the checkout."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import wave
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.waiting import wait_until

ROOT = Path(__file__).parents[3]
PORT = 50051  # the README calls it
SECONDS = 900
# As a person does who reads what the server prints before typing the next command.
SERVE = "voxcpm-grpc serve &"
SERVE_AND_WAIT = """voxcpm-grpc serve > serve.log &
echo $! > serve.pid
until grep -q "listening on" serve.log; do kill -0 $!; sleep 0.5; done"""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.timeout(2 * SECONDS)  # PyTorch is installed twice


@dataclass(frozen=True)
class Newcomer:
    """A copy of the checkout, an empty virtual environment, and a shell in which it is active."""

    checkout: Path
    venv: Path
    env: Mapping[str, str]

    def shell(self, script: str) -> str:
        """The output of a script, in the checkout. What it left in the background goes on."""
        with tempfile.TemporaryFile("w+") as output:
            command = ["bash", "-euo", "pipefail", "-c", script]
            done = subprocess.run(
                command, cwd=self.checkout, env=self.env, stdout=output, stderr=subprocess.STDOUT, timeout=SECONDS
            )
            output.seek(0)
            text = output.read()
        assert done.returncode == 0, f"{script}\n{text[-5000:]}"
        return text


def blocks(*words: str) -> str:
    """The shell commands of the README's blocks that contain one of these words."""
    found = [text for language, text in BLOCK.findall((ROOT / "README.md").read_text("utf-8")) if not language]
    chosen = [text for text in found if any(word in text for word in words)]
    assert len(chosen) == len(words), "the README has other commands now"
    return "\n".join(chosen)


def seconds_of(path: Path) -> float:
    with wave.open(str(path)) as file:
        return file.getnframes() / file.getframerate()


@pytest.fixture(scope="module")
def newcomer() -> Iterator[Newcomer]:
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        checkout, venv, home = (Path(folder, name) for name in ("checkout", "venv", "home"))
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (checkout / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, checkout / name)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        foreign = ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "LD_LIBRARY_PATH", "VOXCPM_LISTEN")
        env = {name: value for name, value in os.environ.items() if name not in foreign}
        path = env["PATH"].split(os.pathsep)
        tools = [one for one in path if one.startswith(str(ROOT))]  # grpcurl is behind everything else
        env["PATH"] = os.pathsep.join([str(venv / "bin"), *(one for one in path if one not in tools), *tools])
        env |= {"XDG_DATA_HOME": str(home), "PIP_QUIET": "1"}
        yield Newcomer(checkout, venv, env)


def test_make_demo(newcomer):
    assert "make demo" in blocks("make demo")
    newcomer.shell("make demo")
    assert 1 < seconds_of(newcomer.checkout / "demo.wav") < 60


@pytest.fixture(scope="module")
def install(newcomer) -> None:
    """Without a GPU the README advises a build of PyTorch for CPUs; the Makefile names the version."""
    [version] = re.findall(r"^TORCH_VERSION \?= (\S+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    index = os.environ.get("TORCH_INDEX")
    newcomer.shell(f"pip install {f'--index-url {index}' if index else ''} torch=={version}")


@pytest.fixture(scope="module")
def server(newcomer, install) -> Iterator[str]:
    """The output of the commands that install the package, start a server and speak."""
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", PORT)), f"port {PORT}, which the README uses, is taken on this host"
    script = blocks("voxcpm-grpc say")
    assert SERVE in script
    try:
        yield newcomer.shell(script.replace(SERVE, SERVE_AND_WAIT))
    finally:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pid = int((newcomer.checkout / "serve.pid").read_text())
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_install_serve_and_say(newcomer, server):
    assert 1 < seconds_of(newcomer.checkout / "snow.wav") < 10


def test_grpcurl(newcomer, server):
    assert '"audio"' in newcomer.shell(blocks("grpcurl"))


def test_python(newcomer, server):
    [program] = [text for language, text in BLOCK.findall((ROOT / "README.md").read_text("utf-8")) if language]
    (newcomer.checkout / "program.py").write_text(program)
    chunks = newcomer.shell("python program.py").splitlines()
    assert len(chunks) > 3
    assert chunks[0].startswith("0 (")  # offset, shape of the samples, rate


def test_the_client_installs_from_the_wheel_without_pytorch(newcomer, server):
    newcomer.shell(
        """
        pip wheel --no-deps --wheel-dir dist .
        python -m venv client
        client/bin/pip install dist/voxcpm_grpc-*.whl
        client/bin/voxcpm-grpc say "Hello." --out client.wav
        ! client/bin/python -c "import torch" 2> /dev/null
        """
    )
    assert 0.3 < seconds_of(newcomer.checkout / "client.wav") < 5
