"""Point 4: `make demo` installs what it needs, says how much that is, and needs no compiler."""

from __future__ import annotations

import re
import resource
import sys
import tomllib
import wave
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.clients.newcomer import Newcomer, Result

COMPUTING_SECONDS = 90.0
TEST_TOOLS = {"pytest", "ruff", "pyright", "hypothesis", "pocketsphinx", "ray", "triton", "hatchling"}
FETCHED = re.compile(r"(?:Downloading|Using cached) \S+\.whl \(([\d.]+) (kB|MB|GB)\)")
LOCAL = re.compile(r"Processing (/\S+\.whl)")  # of a folder of wheels on this host
UNIT = {"kB": 1e3, "MB": 1e6, "GB": 1e9}


@dataclass(frozen=True)
class Demo:
    result: Result
    computing: float  # seconds of all processes
    downloaded: float  # GB, also of what pip has in its cache
    compilers: str  # those that were run
    audio: bytes

    @property
    def promised(self) -> list[float]:
        """The sizes in GB that were printed before the downloads."""
        [line] = [line for line in self.result.output.splitlines() if line.startswith("downloading")]
        return [float(size) for size in re.findall(r"([\d.]+) GB", line)]


def computed() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="module")
def demo(newcomer: Newcomer) -> Demo:
    log, before, compiled = newcomer.checkout.parent / "pip.log", computed(), newcomer.compilers.read_text()
    python = f"PYTHON={sys.base_prefix}/bin/python3"  # that of the newcomer's environment may have torch by now
    result = newcomer.run("make", "demo", python, env={"PIP_LOG": str(log)})
    computing = computed() - before
    assert result.code == 0, result.errors
    text = log.read_text("utf-8")
    size = sum(float(number) * UNIT[unit] for number, unit in FETCHED.findall(text))
    size += sum(path.stat().st_size for path in map(Path, LOCAL.findall(text)) if path.exists())
    audio = (newcomer.checkout / "demo.wav").read_bytes()
    print(f"make demo: {result.seconds:.0f} s, of which {computing:.0f} s are computing; {size / 1e9:.2f} GB")
    # A server of another test may have compiled for later starts.
    return Demo(result, computing, size / 1e9, newcomer.compilers.read_text().removeprefix(compiled), audio)


def installed(newcomer: Newcomer, venv: str = ".venv") -> set[str]:
    command = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    return set(newcomer.run(newcomer.checkout / venv / "bin/python", "-c", command).output.split())


def test_make_demo_speaks(newcomer, demo, tmp_path):
    assert "make demo" in (newcomer.checkout / "README.md").read_text("utf-8")
    (tmp_path / "demo.wav").write_bytes(demo.audio)
    with wave.open(str(tmp_path / "demo.wav")) as file:
        assert 1 < file.getnframes() / file.getframerate() < 60


def test_make_demo_says_first_how_much_it_downloads(demo):
    lines = demo.result.output.splitlines()
    [said] = [number for number, line in enumerate(lines) if line.startswith("downloading")]
    assert said < min(number for number, line in enumerate(lines) if line.startswith("installing"))
    # A build of PyTorch for CPUs, or one for CUDA; the figure is rounded up, and not by much.
    assert any(demo.downloaded <= size <= demo.downloaded * 1.5 + 0.1 for size in demo.promised), demo.downloaded


def test_make_demo_takes_less_than_90_s_beside_the_downloads(demo):
    """Its computing time, which waits for downloads and other programs on the host do not change."""
    assert demo.computing <= COMPUTING_SECONDS


def test_make_demo_runs_no_compiler(demo):
    assert demo.compilers == ""


def test_make_demo_installs_no_test_tools(newcomer, demo):
    names = installed(newcomer)
    assert {"voxcpm-grpc", "voxcpm-grpc-demo", "torch", "grpcio"} <= names
    assert not names & TEST_TOOLS


def test_a_second_make_demo_installs_nothing(newcomer, demo):
    assert "install" not in newcomer.run("make", "--dry-run", "demo").output


def test_make_test_adds_the_test_tools(newcomer, demo):
    commands = newcomer.run("make", "--dry-run", "test").output
    assert commands.count("tools/install.py") == commands.count("--tests") == 1


def test_a_torch_that_is_there_is_used(newcomer, demo):
    """That of the Python which PYTHON names."""
    done = newcomer.run("make", ".venv2/.installed", "VENV=.venv2", f"PYTHON={newcomer.checkout}/.venv/bin/python")
    assert done.code == 0, done.errors
    assert re.search(r"^downloading up to 0.1 GB; torch \S+ is there already$", done.output, re.MULTILINE)
    assert list((newcomer.checkout / ".venv2/lib").rglob("torch/__init__.py")) == []
    run = newcomer.checkout / ".venv2/bin/python"
    assert newcomer.run(run, "-c", "import torch, voxcpm_server.main").code == 0


def test_the_client_has_the_proto_and_no_weights(client, newcomer):
    [wheel] = (newcomer.checkout.parent / "dist").glob("voxcpm_grpc-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".safetensors")]
    program = "from importlib.resources import files; print((files('voxcpm_grpc.v1') / 'tts.proto').read_text())"
    assert "service VoxCPMService" in client.run("python", "-c", program).output
    done = client.run("voxcpm-grpc", "serve")
    assert done.code == 1
    assert "pip install" in done.errors


def test_a_plain_installation_takes_a_torch_that_was_tested(newcomer, server):
    extras = tomllib.loads((newcomer.checkout / "pyproject.toml").read_text("utf-8"))["project"]
    [bounds] = [line for line in extras["optional-dependencies"]["server"] if line.startswith("torch")]
    assert re.search(r"<\d", bounds)
    assert newcomer.run("pip", "check").code == 0
