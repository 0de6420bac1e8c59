"""The Dockerfile as far as it goes without Docker: its rules, and its commands in an environment as it makes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser
from support.servers import deployment
from support.servers.ports import free_address
from support.servers.waiting import HANG_SECONDS, wait_until

from voxcpm_client import Client, SpeechError


def instructions(name: str) -> list[str]:
    """The values of all instructions of a name, in order."""
    parser = DockerfileParser(str(deployment.DOCKERFILE))
    return [one["value"] for one in parser.structure if one["instruction"] == name]


def test_hadolint_finds_nothing():
    done = subprocess.run(
        ["hadolint", "--no-color", "--failure-threshold", "warning", deployment.DOCKERFILE],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_images_are_the_last_stages_and_run_without_root():
    stages = [value.split(" AS ") for value in instructions("FROM")]
    assert [name for _, name in stages][-2:] == ["cuda", "cpu"], "the last is the default"
    assert [base for base, name in stages if name in ("cuda", "cpu")] == ["runtime", "runtime"]
    assert instructions("USER") == ["10001:10001", "10001:10001"]
    assert instructions("VOLUME") == ["/data"]
    kept = deployment.image_variables()
    assert all(kept[name].startswith("/data") for name in ("HOME", "HF_HOME", "TRITON_CACHE_DIR", "VOXCPM_VOICES__URL"))
    assert instructions("STOPSIGNAL") == ["SIGTERM"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the programs of a new environment, made as the image makes its own, with the torch of this one."""
    folder = tmp_path_factory.mktemp("image")
    venv, wheels = folder / "venv", folder / "wheels"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin/python"
    [extras] = [shlex.split(value)[0].partition("=")[2] for value in instructions("ARG") if value.startswith("EXTRAS")]
    program = deployment.DEPLOY / "docker/requirements.py"
    listed = subprocess.run(
        [python, program, deployment.ROOT / "pyproject.toml", *extras.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    (folder / "requirements.txt").write_text(listed.stdout, "utf-8")
    of_tests = [sys.executable, "-m", "pip", "--python", python]  # the pip of Python 3.11 computes twice as long
    pip = [*of_tests, "--disable-pip-version-check", "install", "-q", "--no-compile"]
    subprocess.run([*pip, "--only-binary", ":all:", "-r", folder / "requirements.txt"], check=True)
    for project in (deployment.ROOT, deployment.ROOT / "voxcpm_grpc/demo"):
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels]
        subprocess.run(build, cwd=project, check=True, capture_output=True)
    subprocess.run([*pip, "--no-deps", *wheels.glob("*.whl")], check=True)
    [site] = venv.glob("lib/python*/site-packages")
    (site / "torch_of_the_tests.pth").write_text(f"{distribution('torch').locate_file('')}\n", "utf-8")  # after its own
    yield venv / "bin"


def test_the_command_starts_a_server_that_its_health_check_finds_ready_and_that_stops(installed, tmp_path):
    address, web = free_address(), free_address()
    assert {"VOXCPM_LISTEN", "VOXCPM_HTTP__LISTEN"} <= deployment.image_variables().keys()
    own = {"HOME": str(tmp_path), "VOXCPM_LISTEN": address, "VOXCPM_CLIENT_TARGET": address, "VOXCPM_HTTP__LISTEN": web}
    light = {"VOXCPM_DRAIN_DELAY_SECONDS": "0", "VOXCPM_ENGINE__COMPILE": "off"}
    environment = {"PATH": f"{installed}:{os.environ['PATH']}", **light, **own}
    probe = deployment.image_health_check()
    log = (tmp_path / "log").open("w+")
    server = subprocess.Popen(deployment.image_command(), env=environment, cwd=tmp_path, stdout=log, stderr=log)
    try:
        assert subprocess.run(probe, env=environment, cwd=tmp_path, capture_output=True).returncode == 1, "too early"
        wait_until(lambda: server.poll() is not None or _healthy(probe, environment, tmp_path))
        assert server.poll() is None, Path(log.name).read_text("utf-8")
        with Client(address, timeout=HANG_SECONDS) as client:
            assert client.say("Hello.").samples.size
            assert client.say("It costs $ 5.", normalize=True).samples.size
        body = json.dumps({"input": "Hello.", "response_format": "wav"}).encode()
        request = urllib.request.Request(f"http://{web}/v1/audio/speech", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as response:
            assert response.read().startswith(b"RIFF")
        server.send_signal(signal.SIGTERM)
        assert server.wait(HANG_SECONDS) == 0
        with pytest.raises(SpeechError), Client(address, retries=0) as client:
            client.health()
    finally:
        server.kill()
        server.wait()


def _healthy(probe: list[str], environment: dict[str, str], folder: Path) -> bool:
    return subprocess.run(probe, env=environment, cwd=folder, capture_output=True).returncode == 0
