"""The command of the image with the variables of the image alone, as containers run it.

The root is read-only, and the user is any: without a name, without a home in the list of users, and of the group 0.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from support.engines.checkpoints import TINY
from support.servers import deployment
from support.servers.ports import free_address
from support.servers.uploads import tone
from support.servers.waiting import HANG_SECONDS, wait_until

UID = 12345
MOUNTED = ("unshare", "--user", "--map-root-user", "--mount")
CHOSEN = ("unshare", "--user", f"--map-user={UID}", "--map-group=0")
READ_ONLY = (
    'for folder in "$0" "$TMPDIR"; do mount --bind "$folder" "$folder" || exit; done; mount -o remount,bind,ro /'
)
LISTENING = ("VOXCPM_LISTEN", "VOXCPM_HTTP__LISTEN", "VOXCPM_METRICS__LISTEN")


class Container:
    """Runs commands as a container of the image does, with the volume /data at a folder."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir(mode=0o770)
        temporary = folder / "tmp"
        temporary.mkdir()
        named = {
            name: f"{self.data}{value.removeprefix('/data')}" if value.startswith("/data") else value
            for name, value in deployment.image_variables().items()
        }
        own = {name: free_address() for name in LISTENING}
        program = folder / "bin" / "voxcpm-grpc"  # the environment of the suite has the package, and not its command
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m voxcpm_client "$@"\n', "utf-8")
        program.chmod(0o755)
        path = f"{program.parent}:{os.defpath}"
        self.variables = named | own | {"PATH": path, "TMPDIR": str(temporary)}
        self.isolated = subprocess.run([*MOUNTED, *CHOSEN, "true"], capture_output=True).returncode == 0

    def command(self, *words: str) -> list[str]:
        """A command inside; without user namespaces it has the variables alone, and the user of the tests."""
        inside = ["env", "-i", *(f"{name}={value}" for name, value in self.variables.items()), *words]
        if not self.isolated:
            return inside
        script = f"TMPDIR={shlex.quote(self.variables['TMPDIR'])}; {READ_ONLY} && exec {shlex.join([*CHOSEN, *inside])}"
        return [*MOUNTED, "sh", "-c", script, str(self.data)]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=HANG_SECONDS, cwd="/")

    @contextmanager
    def served(self) -> Iterator[tuple[subprocess.Popen[bytes], IO[str]]]:
        """The command of the image, and its log."""
        with (self.data.parent / "log").open("w+") as log:
            process = subprocess.Popen(self.command(*deployment.image_command()), stdout=log, stderr=log, cwd="/")
            try:
                yield process, log
            finally:
                process.kill()
                process.wait()


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def text(log: IO[str]) -> str:
    return Path(log.name).read_text("utf-8")


def test_any_user_of_the_group_0_serves_grpc_and_http_from_a_read_only_root(container):
    with container.served() as (process, log):
        container.variables["VOXCPM_CLIENT_TARGET"] = container.variables["VOXCPM_LISTEN"]
        wait_until(lambda: process.poll() is not None or "listening on" in text(log))
        assert process.poll() is None, text(log)
        assert container.run(*deployment.image_health_check()).returncode == 0
        said = container.run("voxcpm-grpc", "say", "Hello.", "--out", str(container.data / "hello.wav"))
        assert said.returncode == 0, said.stderr
        (container.data / "ada.wav").write_bytes(tone())
        stored = container.run(
            "voxcpm-grpc", "clone", str(container.data / "ada.wav"), "--reference-only", "--name", "Ada"
        )
        assert stored.returncode == 0, stored.stderr
        body = json.dumps({"input": "Hello.", "voice": "Ada", "response_format": "wav"}).encode()
        url = f"http://{container.variables['VOXCPM_HTTP__LISTEN']}/v1/audio/speech"
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as response:
            assert response.read().startswith(b"RIFF")
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_SECONDS) == 0
        assert "Traceback" not in text(log) and " ERROR " not in text(log)
    assert (container.data / "voices").is_dir()


def test_a_volume_that_the_user_cannot_write_to_is_one_line(container):
    container.data.chmod(0o500)
    container.variables["VOXCPM_MODEL"] = str(TINY)
    container.variables["VOXCPM_VOICES__URL"] = f"{container.data}/voices"
    done = container.run(*deployment.image_command())
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"Error: the voice store {container.data}/voices cannot be used: ")
    assert "Traceback" not in done.stderr


def test_an_empty_variable_turns_http_off(container):
    container.variables["VOXCPM_HTTP__LISTEN"] = ""
    done = container.run(*deployment.image_command(), "--print-config")
    assert done.returncode == 0, done.stderr
    assert re.search(r'^# listen = ""  # address and port of HTTP', done.stdout, re.MULTILINE)
