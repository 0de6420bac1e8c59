"""A server whose engines are actors of a Ray cluster: one server to its callers. And the manifest that ships."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import tomllib
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.servers import Server, serving
from support.waiting import HANG_SECONDS, wait_until

from voxcpm_client import Client, SpeechError
from voxcpm_grpc.settings.sources import load

ROOT = Path(__file__).parent.parent.parent
MANIFEST = ROOT / "server/deploy/ray/kuberay.yaml"
SHORT = {"max_steps": 4, "timesteps": 4, "seed": 7}

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'voxcpm-grpc[ray]'"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """With two engines on a cluster of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)  # else Ray leaves one in the home directory
        folder = tmp_path_factory.mktemp("voices")
        with serving(folder, "--pool", "ray", "--ray.min-engines", "2") as server:
            yield server
            started = psutil.Process(server.process.pid).children(recursive=True)
        assert len(started) > 3
        wait_until(lambda: all(map(is_over, started)))  # nothing of Ray is left behind


def is_over(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def engines(server: Server) -> set[int]:
    """The processes that are engines."""
    found = set()
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name().startswith("ray::VoxCPMEngi"):  # Linux cuts names
                found.add(child.pid)
    return found


def test_the_end_to_end_tests_pass(server):
    command = [sys.executable, "-m", "pytest", "tests/e2e/test_speech.py", "--target", server.address]
    done = subprocess.run([*command, "-p", "no:cacheprovider"], cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout


def test_an_engine_that_dies_under_load_costs_its_own_streams_only(server):
    assert len(engines(server)) == 2
    ends: list[str] = []
    over = threading.Event()

    def call() -> None:
        with Client(server.address, timeout=HANG_SECONDS, retries=0) as client:
            while not over.is_set():
                try:
                    ends.append("whole" if client.say("Hello.", **SHORT).summary.total_samples else "empty")
                except SpeechError as error:
                    ends.append(error.code)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    try:
        wait_until(lambda: ends.count("whole") > 4)
        lost = min(engines(server))
        os.kill(lost, signal.SIGKILL)
        wait_until(lambda: len(engines(server) - {lost}) == 2 and ends.count("whole") > 10, 2 * HANG_SECONDS)
    finally:
        over.set()
        for caller in callers:
            caller.join(HANG_SECONDS)
    assert set(ends) <= {"whole", "ABORTED"}
    assert ends.count("ABORTED") <= 4


# ---- the manifest


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    """Its objects, by kind."""
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with Ray")
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text("utf-8"))}


def container(pod: dict[str, Any]) -> dict[str, Any]:
    [only] = pod["template"]["spec"]["containers"]
    return only


def test_the_manifest_sets_what_is_a_setting(manifest):
    front = container(manifest["Deployment"]["spec"])
    env = {one["name"]: one.get("value", "") for one in front["env"]}
    settings = load([], {name: value for name, value in env.items() if name.startswith("VOXCPM_")})
    assert settings.pool == "ray"
    assert settings.engine.device == "cuda"
    assert settings.listen.endswith(f":{front['ports'][0]['containerPort']}")
    [group] = manifest["RayCluster"]["spec"]["workerGroupSpecs"]
    fronts = manifest["Deployment"]["spec"]["replicas"]
    assert settings.ray.max_engines
    assert group["minReplicas"] >= fronts * settings.ray.min_engines
    assert group["maxReplicas"] >= fronts * settings.ray.max_engines
    grace = manifest["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > settings.drain_seconds


def test_the_manifest_calls_everything_by_its_name(manifest):
    cluster = manifest["RayCluster"]
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    front = container(manifest["Deployment"]["spec"])
    join, serve = front["args"][0].split(" && ")
    assert f"--address={name}-head-svc:6379" in shlex.split(join)
    assert load(shlex.split(serve)[3:], {}) is not None, "flags are settings"
    secrets = [one["valueFrom"]["secretKeyRef"] for one in front["env"] if "valueFrom" in one]
    assert secrets == [{"name": name, "key": "auth_token"}]
    assert manifest["Service"]["spec"]["selector"] == manifest["Deployment"]["spec"]["selector"]["matchLabels"]
    images = {container(pod)["image"] for pod in (spec["headGroupSpec"], *spec["workerGroupSpecs"])}
    assert images == {front["image"]}, "Ray wants the same Python, Ray and code everywhere"


def test_the_manifest_names_a_ray_that_is_supported(manifest):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [oldest] = re.findall(r"ray>=([\d.]+)", " ".join(project["optional-dependencies"]["ray"]))
    version = manifest["RayCluster"]["spec"]["rayVersion"]
    assert [int(part) for part in version.split(".")] >= [int(part) for part in oldest.split(".")]
