"""grpcurl and buf, which know nothing of the service but what reflection or the proto file says."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import pytest

from tools.voice import judge
from voxcpm_client import Client

ROOT = Path(__file__).parents[3]
PROTOS = ROOT / "protos"
PUBLISHED = Path(__file__).with_name("published.binpb")
SERVICE = "voxcpm_grpc.v1.VoxCPMService"
SECONDS = 200


def run(*command: str | Path, code: int = 0) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def audio(output: str) -> bytes:
    """Of messages in JSON, one after the other."""
    decoder, data, position = json.JSONDecoder(), b"", 0
    while position < len(output):
        message, end = decoder.raw_decode(output, position)
        data += base64.b64decode(message.get("audio", ""))
        position = end + len(output[end:]) - len(output[end:].lstrip())
    return data


def test_a_recognizer_understands_the_call(server, call):
    with Client(server.address) as client:
        speech = client.say(call.text, voice=call.voice, seed=call.seed, sample_rate=16000)
    text = judge.Recognizer().transcribe(speech.samples)
    assert judge.word_errors(call.text, text).rate <= 0.2, text


@pytest.mark.parametrize("source", ["reflection", "file"])
def test_grpcurl_speaks(server, call, check, source):
    schema = ["-import-path", str(PROTOS), "-proto", "voxcpm_grpc/v1/tts.proto"] if source == "file" else []
    check(audio(run("grpcurl", "-plaintext", *schema, "-d", call.json, server.address, f"{SERVICE}/Generate")))


def test_grpcurl_lists_describes_and_shows_errors(server):
    services = run("grpcurl", "-plaintext", server.address, "list").splitlines()
    assert {SERVICE, "grpc.reflection.v1.ServerReflection"} <= set(services)
    for name in (*services, f"{SERVICE}.Generate", "grpc.health.v1.Health.Watch"):
        assert "rpc " in run("grpcurl", "-plaintext", server.address, "describe", name)
    asked = ("-d", '{"id": "ref_' + "a" * 32 + '"}', server.address, f"{SERVICE}/GetVoice")
    error = run("grpcurl", "-plaintext", *asked, code=64 + 5)
    assert "Code: NotFound" in error
    assert "google.rpc.RequestInfo" in error


def test_buf_speaks(server, call, check):
    plain = ("--protocol", "grpc", "--http2-prior-knowledge")
    check(audio(run("buf", "curl", *plain, "-d", call.json, f"http://{server.address}/{SERVICE}/Generate")))


def test_buf_lists_the_methods(server):
    plain = ("--protocol", "grpc", "--http2-prior-knowledge", "--list-methods")
    methods = run("buf", "curl", *plain, f"http://{server.address}").splitlines()
    assert f"{SERVICE}/Generate" in methods
    assert "grpc.reflection.v1.ServerReflection/ServerReflectionInfo" in methods


def test_the_contract_breaks_no_published_client():
    """`buf build protos --exclude-source-info -o published.binpb` wrote the contract that is compared with."""
    rules = '{"version": "v2", "breaking": {"use": ["WIRE_JSON"]}}'
    assert run("buf", "breaking", PROTOS, "--against", PUBLISHED, "--config", rules) == ""


def test_the_contract_keeps_to_the_style_of_protos():
    assert run("buf", "lint", PROTOS, "--config", '{"version": "v2"}') == ""
