"""Text of a server cannot control the terminal of the person who runs the command line."""

from __future__ import annotations

import json

import pytest
from support.clients.commands import cli_runner

from voxcpm_client.cli import main
from voxcpm_grpc.text.characters import CONTROL, escaped, escaped_json
from voxcpm_grpc.v1 import tts_pb2 as pb

EVIL = "a\x1b[2J\x1b]0;owned\x07\r\nb\x9b31m\u202egnp.exe\u2028c\u2066d\x00\x7f"
HARMLESS = "Zoë 👩\u200d🚀 פּ مرحبا\u00a0— 日本"


@pytest.fixture
def run(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VOXCPM_CLIENT_TARGET", server.target)
    return lambda *arguments: cli_runner().invoke(main, [str(argument) for argument in arguments])


def is_plain(text: str) -> bool:
    """True if no character but the ends of lines controls anything."""
    return CONTROL.sub("", text.replace("\n", "")) == text.replace("\n", "")


@pytest.fixture
def evil(server) -> str:
    handle = pb.VoiceHandle(
        id="prm_evil\x1b[1m",
        kind=pb.VOICE_KIND_PROMPT,
        display_name=EVIL,
        transcript=EVIL,
        labels={EVIL: EVIL},
        model_fingerprint=EVIL,
    )
    server.handles[handle.id] = handle
    return handle.id


def test_control_characters_are_escaped_in_lists_and_in_single_voices(run, evil):
    listed = run("voices", "list")
    assert listed.exit_code == 0, listed.output
    assert is_plain(listed.output)
    assert len(listed.stdout.splitlines()) == 2
    assert r"a\x1b[2J\x1b]0;owned\x07\r\nb\x9b31m\u202egnp.exe\u2028c\u2066d\x00\x7f" in listed.stdout
    shown = run("voices", "show", evil)
    assert shown.exit_code == 0, shown.output
    assert is_plain(shown.output)
    assert "\\x1b[2J" in shown.stdout


def test_json_has_the_same_value_without_control_characters(run, evil):
    for arguments in (("voices", "list"), ("voices", "show", evil)):
        result = run(*arguments, "--json")
        assert is_plain(result.output)
        found = json.loads(result.stdout)
        voice = found[0] if isinstance(found, list) else found
        assert (voice["name"], voice["labels"]) == (EVIL, {EVIL: EVIL})


def test_errors_of_a_server_are_escaped(run, server):
    server.fail("INVALID_ARGUMENT", message=EVIL, request_id=EVIL)
    result = run("say", "Hello.")
    assert result.exit_code == 1
    assert is_plain(result.stdout + result.stderr)
    assert "owned" in result.stderr


def test_other_characters_are_printed_as_they_are(run, server):
    handle = pb.VoiceHandle(id="prm_good", kind=pb.VOICE_KIND_PROMPT, display_name=HARMLESS)
    server.handles[handle.id] = handle
    assert HARMLESS in run("voices", "list").stdout
    assert HARMLESS in run("voices", "list", "--json").stdout
    assert escaped(HARMLESS) == escaped_json(HARMLESS) == HARMLESS
