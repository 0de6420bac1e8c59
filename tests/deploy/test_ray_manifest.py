"""The manifest for Ray on Kubernetes: its settings exist, and its objects refer to each other by the right names."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from voxcpm_grpc.settings.sources import load

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "server/deploy/ray/kuberay.yaml"


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    """Its objects, by kind."""
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
