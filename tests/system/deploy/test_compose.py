"""Docker Compose itself reads the file; it needs no Docker for that."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.servers import deployment


def resolved(profile: str, **variables: str) -> dict[str, Any]:
    """The file as compose resolves it for a profile."""
    command = ["docker-compose", "-f", deployment.COMPOSE, "--profile", profile, "config", "--format", "json"]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr.lower(), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("profile", "target"), [("cpu", "cpu"), ("gpu", "cuda")])
def test_a_profile_has_one_server_with_its_monitoring(profile, target):
    services = resolved(profile)["services"]
    assert services.keys() == {profile, "prometheus", "grafana"}
    server = services[profile]
    assert server["build"]["target"] == target
    assert Path(server["build"]["context"]) == deployment.ROOT
    assert (deployment.ROOT / server["build"]["dockerfile"]) == deployment.DOCKERFILE
    assert server["networks"]["default"]["aliases"] == ["server"]
    assert server["read_only"] and server["cap_drop"] == ["ALL"]
    assert [(one["target"], one["type"]) for one in server["volumes"]] == [("/data", "volume")]
    assert [(port["host_ip"], port["target"]) for port in server["ports"]] == [
        ("127.0.0.1", 50051),
        ("127.0.0.1", 8000),
    ]


def test_the_gpu_profile_reserves_a_gpu_and_the_other_none():
    [device] = resolved("gpu")["services"]["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert "deploy" not in resolved("cpu")["services"]["cpu"]


def test_what_is_mounted_exists():
    mounts = [
        Path(volume["source"])
        for service in resolved("cpu")["services"].values()
        for volume in service.get("volumes", ())
        if volume["type"] == "bind"
    ]
    assert len(mounts) == 3
    assert all(path.is_dir() for path in mounts)
    provider = deployment.document(deployment.DEPLOY / "grafana/provisioning/dashboards/voxcpm-grpc.yaml")
    targets = [volume["target"] for volume in resolved("cpu")["services"]["grafana"]["volumes"]]
    assert provider["providers"][0]["options"]["path"] in targets


def test_variables_choose_model_and_addresses():
    server = resolved(
        "cpu", VOXCPM_MODEL="openbmb/VoxCPM2", VOXCPM_PUBLISH="0.0.0.0:443", VOXCPM_HTTP_PUBLISH="127.0.0.1:80"
    )["services"]["cpu"]
    assert server["environment"]["VOXCPM_MODEL"] == "openbmb/VoxCPM2"
    assert [port["published"] for port in server["ports"]] == ["443", "80"]
