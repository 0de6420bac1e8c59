"""The program of the documentation for Node, and streams in C++ that are not read. Others are in languages."""

from __future__ import annotations

import re
import subprocess
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.servers import serving
from support.tolerances import IN_A_BATCH

from voxcpm_client import Client

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PROTOS = ROOT / "protos"
FILE = "voxcpm_grpc/v1/tts.proto"
SECONDS = 500

pytestmark = pytest.mark.timeout(600)  # a C++ program is built


def run(*command: str | Path, folder: Path = ROOT) -> bytes:
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_node_as_the_documentation_says(server, tmp_path):
    (program,) = re.findall(r"```js\n(.*?)```", (ROOT / "docs/other-languages.md").read_text("utf-8"), re.DOTALL)
    assert "defaults: true" in program
    (tmp_path / "hello.js").write_text(program.replace("127.0.0.1:50051", server.address), "utf-8")
    (tmp_path / "protos").symlink_to(PROTOS)
    assert run("node", "hello.js", folder=tmp_path) == b"voice slt at 16000 Hz\n"
    with wave.open(str(tmp_path / "hello-node.wav")) as file:
        assert 16000 * 0.5 < len(file.readframes(16000 * 60)) / 2 < 16000 * 5


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds a program of this folder by its name."""
    folder = tmp_path_factory.mktemp("cpp")
    plugin = run("which", "grpc_cpp_plugin").decode().strip()
    outputs = (f"--cpp_out={folder}", f"--grpc_out={folder}", f"--plugin=protoc-gen-grpc={plugin}")
    run("protoc", f"-I{PROTOS}", *outputs, FILE)
    compiler = ("g++", "-std=c++17", "-O0", "-w", f"-I{folder}")
    objects = []
    for name in ("pb", "grpc.pb"):
        objects.append(folder / f"{name}.o")
        run(*compiler, "-c", folder / f"voxcpm_grpc/v1/tts.{name}.cc", "-o", objects[-1])

    def program(name: str) -> Path:
        libraries = ("-Wl,--copy-dt-needed-entries", "-lgrpc++", "-lprotobuf")
        run(*compiler, HERE / f"{name}.cc", *objects, "-o", folder / name, *libraries)
        return folder / name

    return program


def test_cpp_streams_that_are_not_read_leave_the_others_their_slots(call, expected, build, tmp_path):
    """More streams than the engine has slots, with the default pacing."""
    lead = ("--limits.max-lead-seconds", "2")
    with serving(tmp_path, *lead, model="demo") as server, Client(server.address) as client:
        streams = 2 * client.model_info().max_slots
        words = (build("stall"), server.address, str(streams), f"{call.text} " * 40)
        stalled = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert stalled.stdout and stalled.stdout.readline() == "open\n"
            for _ in range(3):
                samples = client.say(call.text, voice=call.voice, seed=call.seed).samples
                assert np.abs(samples.astype(int) - expected).max() <= IN_A_BATCH
            assert stalled.poll() is None
        finally:
            stalled.communicate("\n", timeout=SECONDS)
    assert stalled.returncode == 0
