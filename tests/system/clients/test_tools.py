"""grpcurl and buf, which know nothing of the service but what reflection or the proto file says."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.voice import judge
from voxcpm_client import Client

ROOT = Path(__file__).parents[3]
PROTOS = ROOT / "protos"
FILE = "voxcpm_grpc/v1/tts.proto"
PUBLISHED = PROTOS / "published.binpb"
SERVICE = "voxcpm_grpc.v1.VoxCPMService"
SECONDS = 200


def run(*command: str | Path, code: int = 0, folder: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
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
        speech = client.say(call.text, **call.options, sample_rate=16000)
    text = judge.Recognizer().transcribe(speech.samples)
    assert judge.word_errors(call.text, text).rate <= 0.2, text


@pytest.mark.models
@pytest.mark.parametrize("source", ["reflection", "file"])
def test_grpcurl_speaks(server, call, check, source):
    schema = ["-import-path", str(PROTOS), "-proto", FILE] if source == "file" else []
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


@pytest.mark.models
def test_buf_speaks(server, call, check):
    plain = ("--protocol", "grpc", "--http2-prior-knowledge")
    check(audio(run("buf", "curl", *plain, "-d", call.json, f"http://{server.address}/{SERVICE}/Generate")))


def test_buf_lists_the_methods(server):
    plain = ("--protocol", "grpc", "--http2-prior-knowledge", "--list-methods")
    methods = run("buf", "curl", *plain, f"http://{server.address}").splitlines()
    assert f"{SERVICE}/Generate" in methods
    assert "grpc.reflection.v1.ServerReflection/ServerReflectionInfo" in methods


def test_the_contract_breaks_no_published_client():
    assert run("buf", "breaking", "--against", PUBLISHED) == ""


def test_a_changed_number_of_a_field_is_found(tmp_path):
    """The rules of buf.yaml and the image together see what breaks a client."""
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    copy = tmp_path / "protos" / FILE
    copy.parent.mkdir(parents=True)
    text = (PROTOS / FILE).read_text("utf-8")
    assert "bytes audio = " in text
    copy.write_text(re.sub(r"(bytes audio = )\d+", r"\g<1>999", text), "utf-8")
    assert 'name "audio"' in run("buf", "breaking", "--against", PUBLISHED, folder=tmp_path, code=100)


def test_the_contract_keeps_to_the_style_of_protos():
    assert run("buf", "lint") == ""


def test_only_streams_of_audio_share_the_type_of_their_responses(tmp_path):
    """buf.yaml ignores two rules for the whole file, because comments at the four RPCs would be in all stubs."""
    rules = (ROOT / "buf.yaml").read_text("utf-8")
    (tmp_path / "buf.yaml").write_text(re.sub(r"  ignore_only:.*?(?=\nbreaking)", "", rules, flags=re.DOTALL), "utf-8")
    (tmp_path / "protos").symlink_to(PROTOS)
    found = run("buf", "lint", folder=tmp_path, code=100)
    assert re.findall(r'should be named "(\w+)Response"', found) == ["Generate", "AddPrompt", "AddReference", "AddHifi"]
    assert all("AudioChunk" in line for line in found.splitlines()), found
