"""Programs of a few lines with the gRPC libraries of Node, C++ and another one of Python."""

from __future__ import annotations

import re
import subprocess
import wave
from pathlib import Path

import pytest
from grpclib.client import Channel
from grpclib.const import Cardinality

from voxcpm_grpc.v1 import tts_pb2 as pb

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


def test_node(server, call, check):
    check(run("node", HERE / "speak.js", PROTOS / FILE, server.address, *call.words))


def test_node_as_the_documentation_says(server, tmp_path):
    (program,) = re.findall(r"```js\n(.*?)```", (ROOT / "docs/other-languages.md").read_text("utf-8"), re.DOTALL)
    assert "defaults: true" in program
    (tmp_path / "hello.js").write_text(program.replace("127.0.0.1:50051", server.address), "utf-8")
    (tmp_path / "protos").symlink_to(PROTOS)
    assert run("node", "hello.js", folder=tmp_path) == b"voice slt at 16000 Hz\n"
    with wave.open(str(tmp_path / "hello-node.wav")) as file:
        assert 16000 * 0.5 < len(file.readframes(16000 * 60)) / 2 < 16000 * 5


def test_cpp(server, call, check, tmp_path):
    plugin = run("which", "grpc_cpp_plugin").decode().strip()
    outputs = (f"--cpp_out={tmp_path}", f"--grpc_out={tmp_path}", f"--plugin=protoc-gen-grpc={plugin}")
    run("protoc", f"-I{PROTOS}", *outputs, FILE)
    stem = tmp_path / "voxcpm_grpc/v1/tts"
    sources = (HERE / "speak.cc", f"{stem}.pb.cc", f"{stem}.grpc.pb.cc")
    libraries = ("-Wl,--copy-dt-needed-entries", "-lgrpc++", "-lprotobuf")
    run("g++", "-std=c++17", "-O0", "-w", f"-I{tmp_path}", *sources, "-o", tmp_path / "speak", *libraries)
    check(run(tmp_path / "speak", server.address, *call.words))


async def test_grpclib(server, call, check):
    host, port = server.address.rsplit(":", 1)
    path = "/voxcpm_grpc.v1.VoxCPMService/Generate"
    audio = b""
    async with Channel(host, int(port)) as channel:
        method = channel.request(path, Cardinality.STREAM_STREAM, pb.GenerateRequest, pb.AudioChunk)
        async with method as stream:
            config = pb.GenerateConfig(conditioning=pb.Conditioning(preset=call.voice))
            config.turn.sampling.seed = call.seed
            await stream.send_message(pb.GenerateRequest(config=config))
            await stream.send_message(pb.GenerateRequest(text=call.text), end=True)
            async for chunk in stream:
                audio += chunk.audio
    check(audio)
