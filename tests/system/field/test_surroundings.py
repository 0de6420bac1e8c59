"""The command line in poor surroundings: closed standard streams, full disks, a user without a name and a home."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.engines.checkpoints import TINY
from support.servers.ports import free_address
from support.servers.waiting import HANG_SECONDS, wait_until

PROGRAM = (sys.executable, "-m", "voxcpm_client")
NOBODY = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
NAMELESS = """
import pwd
def unknown(uid):
    raise KeyError(uid)
pwd.getpwuid = unknown
from voxcpm_client.cli import main
main(prog_name="voxcpm-grpc")
"""  # for hosts without user namespaces
TRACES = re.compile(r"Traceback|Exception ignored|Aborted|Assertion")
ALL_CLOSED = "<&- >&- 2>&-"


def run(words: str, redirections: str, folder: Path, target: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command with redirections of a shell; returns its status and what its open streams received."""
    command = f"{shlex.join(PROGRAM)} {words} {redirections}"
    variables = {**os.environ, "VOXCPM_CLIENT_TARGET": target}
    return subprocess.run(
        ["sh", "-c", command], env=variables, cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS
    )


def answers(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.parametrize("closed", ["<&-", ALL_CLOSED])
def test_a_server_serves_and_ends_with_closed_streams(tmp_path, closed):
    address = free_address()
    flags = f"serve --model {TINY} --listen {address} --voices.url memory: --drain-delay-seconds 0 --http 127.0.0.1:0"
    with (tmp_path / "log").open("w+") as log:
        command = ["sh", "-c", f"exec {shlex.join(PROGRAM)} {flags} {closed}"]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=tmp_path)
        try:
            wait_until(lambda: server.poll() is not None or answers(address))
            assert server.poll() is None, Path(log.name).read_text()
            said = run(f"say Hello. --out a.wav --retry-seconds {HANG_SECONDS}", "", tmp_path, address)
            assert said.returncode == 0, said.stderr
            server.terminate()
            assert server.wait(HANG_SECONDS) == 0
        finally:
            server.kill()
            server.wait()
        assert not TRACES.search(Path(log.name).read_text())


@pytest.mark.parametrize(
    ("words", "redirections", "status", "line"),
    [
        ("say Hello. --out -", ">&-", 1, "Error: stdout is closed; write a file with --out FILE.wav, or open stdout"),
        (
            "say --out a.wav",
            "<&-",
            1,
            "Error: there is no text: stdin is closed; give TEXT, --file FILE, or open stdin",
        ),
        ("say - --out a.wav", "<&-", 1, "Error: there is no text: stdin is closed; give TEXT"),
        ("say Hello. --out -", ">/dev/full", 1, "Error: the output cannot be written: no space is left on its device"),
        ("info", ">/dev/full", 1, "Error: the output cannot be written: no space is left on its device"),
        ("--help", ">/dev/full", 1, "Error: the output cannot be written: no space is left on its device"),
        ("--version", ">/dev/full", 1, "Error: the output cannot be written: no space is left on its device"),
        ("serve --help", ">/dev/full", 1, "Error: the output cannot be written: no space is left on its device"),
        ("say --wrong", ">/dev/full 2>/dev/full", 1, ""),
        ("serve --listen :1", "2>&-", 1, ""),
        ("health", ALL_CLOSED, 0, ""),
        ("say Hello. --out a.wav", "2>&-", 0, None),
        ("say Hello. --out a.wav", ">&-", 0, None),
        ("say Hello. --out -", ALL_CLOSED, 1, ""),
        ("top", ">&-", 2, None),
    ],
)
def test_a_stream_that_cannot_be_used_is_one_line_or_silence(site, tmp_path, words, redirections, status, line):
    done = run(words, redirections, tmp_path, site.server.address)
    assert done.returncode == status, done.stderr
    assert not TRACES.search(done.stderr + done.stdout)
    if line is not None:
        assert done.stderr.startswith(line) and len(done.stderr.splitlines()) == bool(line), done.stderr


def test_a_reader_that_ends_early_ends_the_command_in_silence(site, tmp_path):
    done = run("say Hello. --out -", "| head -c 1 >/dev/null", tmp_path, site.server.address)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def nobody() -> tuple[str, ...]:
    """The program for a user who has neither a name nor a home, with the variable PATH alone."""
    alone = ("env", "-i", f"PATH={os.defpath}")
    isolated = subprocess.run([*alone, *NOBODY, "true"], capture_output=True).returncode == 0
    return (*alone, *NOBODY, *PROGRAM) if isolated else (*alone, sys.executable, "-c", NAMELESS)


def test_a_user_without_a_name_and_a_home_speaks_and_serves(site, nobody, tmp_path):
    for words in (
        ("health", "--target", site.server.address),
        ("say", "Hello.", "--out", "a.wav", "--target", site.server.address),
        ("demo", "--out", "b.wav"),
    ):
        done = subprocess.run([*nobody, *words], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
        assert done.returncode == 0, done.stderr
        assert not TRACES.search(done.stderr)
    listen = ("gateway", "--listen", "127.0.0.1:0", "--target", site.server.address)
    gateway = subprocess.Popen([*nobody, *listen], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert gateway.stdout is not None
    with gateway.stdout:
        assert gateway.stdout.readline().startswith("listening on http://127.0.0.1:")
        gateway.terminate()
        assert gateway.wait(HANG_SECONDS) == 0


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("serve", "--listen", "127.0.0.1:0"), "set voices.url to a place for voices"),
        (("serve", "--model", "~/model"), "write a path without ~/"),
        (("serve", "--tls.cert", "~/cert.pem"), "write a path without ~/"),
        (
            ("serve", "--voices.url", "memory:", "--admin.listen", "127.0.0.1:0", "--admin.lora-sources", "/tmp"),
            "set admin.lora_cache to a folder for adapters",
        ),
        (("download", "~/model"), "write a path without ~/"),
    ],
)
def test_what_needs_a_home_names_the_setting_to_use_instead(nobody, tmp_path, words, remedy):
    done = subprocess.run([*nobody, *words], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Error: this user has no home directory: ") and remedy in last
    assert last.endswith(", or the variable HOME")
    assert not TRACES.search(done.stderr)
