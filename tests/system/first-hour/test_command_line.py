"""Point 3: the command line shows what happens, and leaves the terminal as it was."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess

import pytest
from support.clients.newcomer import ROOT, Served
from support.servers.waiting import wait_until

LOGGED = re.compile(r"^[\d-]+ [\d:,]+ [A-Z]+ ")


def log(served: Served) -> str:
    return served.output.read_text() + served.errors.read_text()


@pytest.fixture(scope="module")
def debugged(client, serve):
    """The log of a server that has spoken two sentences, with `--log-level debug`."""
    with serve("--log-level=debug") as served:
        done = client.run(
            *("voxcpm-grpc", "say", "The train was late. We waited.", "--voice", "miles"),
            *("--target", served.address, "--out", "debugged.wav"),
        )
        assert done.code == 0, done.errors
        wait_until(lambda: "method=Generate code=OK" in log(served))
        return log(served)


def test_a_start_shows_its_progress_from_the_first_second(serve):
    with serve(wait=False) as served:
        wait_until(lambda: log(served) or served.process.poll() is not None)
        assert "listening on" not in log(served)
        wait_until(lambda: "listening on" in log(served) or served.process.poll() is not None)
        before = served.errors.read_text()
    steps = [line for line in before.splitlines() if re.search(r"load|start|warm|ready", line, re.IGNORECASE)]
    assert len(steps) >= 3, before
    assert [line for line in steps if re.search(r"\d+ ?(%|of \d|/ ?\d)", line)], before  # how far it is


@pytest.mark.parametrize("decision", ["segment", "admi", "step"])
def test_debug_shows_the_decisions_of_the_server(debugged, decision):
    assert [line for line in debugged.splitlines() if " DEBUG voxcpm" in line and decision in line.lower()]


def test_debug_shows_nothing_of_the_libraries(debugged):
    lines = [line for line in debugged.splitlines() if LOGGED.match(line)]
    assert len(lines) > 10
    assert [line for line in lines if " voxcpm_" not in line] == []


def test_the_line_of_an_rpc_says_what_it_did(debugged):
    [line] = [line for line in debugged.splitlines() if " rpc id=" in line and "method=Generate" in line]
    said = dict(re.findall(r"(\w+)=(\S+)", line))
    assert re.match(r"(ipv4:)?127\.0\.0\.1", said["peer"])
    assert said["voice"] == "miles"
    assert said["characters"] == str(len("The train was late. We waited."))
    queued, first, audio = (float(said[key]) for key in ("queue_seconds", "first_audio_seconds", "audio_seconds"))
    assert queued >= 0 and first > 0 and audio > 1


def test_audio_is_never_written_to_a_terminal(client, server):
    ours, theirs = pty.openpty()
    command = [client.venv / "bin/voxcpm-grpc", "say", "Hello.", "--out", "-"]
    with subprocess.Popen(command, env=client.env, stdout=theirs, stderr=subprocess.PIPE) as speaking:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # raised at the end of a terminal
            while part := os.read(ours, 1 << 16):
                shown += part
        errors = speaking.stderr.read().decode() if speaking.stderr else ""
    os.close(ours)
    assert shown == b""
    assert speaking.returncode != 0
    assert "terminal" in errors


def complete(newcomer, *words: str) -> list[str]:
    """The words that the shell would offer for the last one."""
    env = {
        "_VOXCPM_GRPC_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("voxcpm-grpc", *words)),
        "COMP_CWORD": str(len(words)),
    }
    offered = newcomer.run("voxcpm-grpc", env=env).output.split()
    return [line.partition(",")[2] for line in offered]


def test_the_shell_completes_commands_and_the_flags_of_serve(newcomer, server):
    assert "serve" in complete(newcomer, "se")
    assert "--voice" in complete(newcomer, "say", "--vo")
    assert {"--limits.max-streams", "--limits.max-text-chars"} <= set(complete(newcomer, "serve", "--limits."))


def test_a_page_shows_how_to_set_completion_up():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert [page for page in pages if "_VOXCPM_GRPC_COMPLETE" in page.read_text("utf-8")]
