"""Stubs are made as docs/other-languages.md says, with the names that it gives, and some are compiled."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from support.clients.client_programs import BUILD_SECONDS, ROOT, SOURCES, debian

from voxcpm_grpc.v1 import tts_pb2 as pb

PAGE = (ROOT / "docs/other-languages.md").read_text("utf-8")
DETAILS = ("google/rpc/error_details.proto", "google/rpc/status.proto")


def run(*command: str | Path, folder: Path, text: str = "", **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | variables,
        input=text,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def section(heading: str) -> str:
    return re.split(r"\n###? ", PAGE.partition(f"\n### {heading}\n")[2])[0]


def commands(heading: str) -> list[str]:
    """The commands of a section of the page."""
    return re.findall(r"```\n(.*?)```", section(heading), re.DOTALL)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder as the commands need it."""
    (tmp_path / "protos").symlink_to(ROOT / "protos")
    (tmp_path / "gen").mkdir()
    return tmp_path


MADE = {  # a section of the page, and for files that its commands write a line that they have
    "Go": {
        "voxcpm_grpc/v1/tts.pb.go": "package voxcpmv1",
        "voxcpm_grpc/v1/tts_grpc.pb.go": "package voxcpmv1",
    },
    "Java and Kotlin": {
        "voxcpm_grpc/v1/VoxCPMServiceGrpc.java": "package voxcpm_grpc.v1;",
        "voxcpm_grpc/v1/GenerateRequestKt.kt": "package voxcpm_grpc.v1;",
    },
    "Ruby": {"voxcpm_grpc/v1/tts_services_pb.rb": "module VoxcpmGrpc"},
    "PHP": {
        "VoxcpmGrpc/V1/VoxCPMServiceClient.php": r"namespace VoxcpmGrpc\V1;",
        "VoxcpmGrpc/V1/GPBMetadata/Tts.php": r"namespace VoxcpmGrpc\V1\GPBMetadata;",
    },
    "C#": {"Tts.cs": "namespace VoxcpmGrpc.V1 {"},
    "Objective-C": {"voxcpm_grpc/v1/Tts.pbobjc.h": "GPB_FINAL @interface VOXInterrupt : GPBMessage"},
}


@pytest.mark.parametrize("heading", MADE)
def test_code_is_generated_as_the_page_says(heading, folder):
    run("bash", "-euc", commands(heading)[0], folder=folder)
    for file, line in MADE[heading].items():
        assert line.encode() in (folder / "gen" / file).read_bytes().splitlines(), file  # PHP's have descriptors, too


def test_buf_generates_go_code_as_the_page_says(folder):
    (config,) = re.findall(r"```yaml\n(.*?)```", section("Go"), re.DOTALL)
    (folder / "buf.gen.yaml").write_text(config)
    run("buf", "generate", folder=folder)
    assert "\npackage voxcpmv1\n" in (folder / "gen/voxcpm_grpc/v1/tts.pb.go").read_text("utf-8")


PHP = r"""<?php
set_include_path(getenv("LIBRARY"));
spl_autoload_register(function ($class) {
    $place = str_starts_with($class, "VoxcpmGrpc\\") ? __DIR__ . "/gen/" : "";
    require $place . str_replace("\\", "/", $class) . ".php";
});
use VoxcpmGrpc\V1\{AudioChunk, Conditioning, GenerateConfig, GenerateRequest, Sampling, TurnConfig};
$sampling = (new Sampling())->setSeed(PHP_INT_MAX);
$config = (new GenerateConfig())->setConditioning((new Conditioning())->setVoice("miles"));
$request = (new GenerateRequest())->setConfig($config->setTurn((new TurnConfig())->setSampling($sampling)));
$chunk = new AudioChunk();
$chunk->mergeFromString(base64_decode(stream_get_contents(STDIN)));
echo json_encode([base64_encode($request->serializeToString()), $chunk->getHeader()->getSeed(), $chunk->getAudio()]);
"""


def test_one_rule_of_an_autoloader_finds_all_classes_of_php(folder):
    run("bash", "-euc", commands("PHP")[0], folder=folder)
    (folder / "exchange.php").write_text(PHP)
    sent = pb.AudioChunk(audio=b"abc", header=pb.StreamHeader(seed=2**63 - 1))
    php, options = "php", ["-d", "display_errors=stderr"]  # its library is older than it, and deprecated
    if unpacked := sorted((debian() / "usr/bin").glob("php[0-9]*")):  # an installation enables its extensions
        (extensions,) = (debian() / "usr/lib/php").glob("*/ctype.so")
        php = unpacked[0]
        options += ["-d", f"extension_dir={extensions.parent}", "-d", "extension=ctype"]
    library = os.pathsep.join([str(debian() / "usr/share/php"), "/usr/share/php"])
    text = base64.b64encode(sent.SerializeToString()).decode()
    received, seed, audio = json.loads(run(php, *options, "exchange.php", folder=folder, text=text, LIBRARY=library))
    config = pb.GenerateConfig(conditioning=pb.Conditioning(voice="miles"))
    config.turn.sampling.seed = 2**63 - 1
    assert pb.GenerateRequest.FromString(base64.b64decode(received)) == pb.GenerateRequest(config=config)
    assert (seed, audio) == (2**63 - 1, "abc")


RUBY = """
$LOAD_PATH.unshift "gen"
require "voxcpm_grpc/v1/tts_services_pb"
class Agent
  include VoxcpmGrpc::V1
  FOUND = Interrupt
end
include VoxcpmGrpc::V1
p [Interrupt, Agent::FOUND, VoxcpmGrpc::V1::Interrupt]
"""


def test_ruby_has_an_interrupt_of_its_own(build):
    assert (
        build("ruby").tool("ruby", "-e", RUBY) == "[Interrupt, VoxcpmGrpc::V1::Interrupt, VoxcpmGrpc::V1::Interrupt]\n"
    )


def test_go_takes_the_copies_of_google_rpc_for_googleapis(build, server, tmp_path):
    """They have its import paths, so that they compile in the place of its packages, and gRPC itself uses them."""
    program = build("go").with_source(SOURCES / "go/speak.go", "own-details")
    path = Path(program.environment["GOPATH"].partition(os.pathsep)[0])
    program.tool("protoc", f"-I{SOURCES}", f"--go_out={path / 'src'}", *DETAILS)
    found = program.tool("go", "list", "-deps", "-f", "{{.Dir}}").splitlines()
    assert {
        str(path / "src/google.golang.org/genproto/googleapis/rpc" / name) for name in ("errdetails", "status")
    } <= set(found)
    program.tool("go", "build", "-o", "speak")
    status, said = program.run(server.address, "nobody", out=tmp_path / "speech.wav")
    assert status == 1 and "*errdetails.RequestInfo request_id:" in said


def test_java_takes_the_copies_of_google_rpc_for_googleapis(build, server, tmp_path):
    program = build("java").with_source(SOURCES / "java/Speak.java", "own-details")
    jars = Path(program.environment["JARS"])
    (tmp_path / "classes").mkdir()
    program.tool("protoc", f"-I{SOURCES}", f"--java_out={tmp_path}", *DETAILS)
    sources = sorted(tmp_path.glob("com/google/rpc/*.java"))
    program.tool("javac", "-nowarn", "-d", tmp_path / "classes", "-cp", jars / "protobuf.jar", *sources)
    (jars / "proto-google-common-protos.jar").unlink()
    program.tool("jar", "cf", jars / "proto-google-common-protos.jar", "-C", tmp_path / "classes", ".")
    status, said = program.run(server.address, "nobody", out=tmp_path / "speech.wav")
    assert status == 1 and "[type.googleapis.com/google.rpc.RequestInfo]" in said
