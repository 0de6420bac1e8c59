"""The Kubernetes examples of the page about probes: their settings exist, and a pod has time to drain."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.sources import load

PAGE = Path(__file__).parents[2] / "docs/probes.md"
STOP_SECONDS = 15.0  # for the end of engines and fronts after the drain


@pytest.fixture(scope="module")
def examples() -> list[dict[str, Any]]:
    page = PAGE.read_text("utf-8")
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]


def test_a_pod_has_more_time_than_its_drain(examples):
    [pod] = [example["spec"] for example in examples if "spec" in example]
    [container] = pod["containers"]
    settings = load([], {one["name"]: one["value"] for one in container["env"]})
    assert pod["terminationGracePeriodSeconds"] >= settings.drain_seconds + STOP_SECONDS
    assert settings.drain_seconds == Settings().drain_seconds
    assert settings.listen.endswith(":50051") and not settings.listen.startswith("127.")
    probes = {name: value["grpc"] for name, value in container.items() if name.endswith("Probe")}
    assert probes == {
        "startupProbe": {"port": 50051},
        "readinessProbe": {"port": 50051},
        "livenessProbe": {"port": 50051, "service": "liveness"},
    }


def test_only_the_liveness_probe_with_tls_names_its_service(examples):
    [probes] = [example for example in examples if "livenessProbe" in example]
    named = {name: "-service=liveness" in probe["exec"]["command"] for name, probe in probes.items()}
    assert named == {"readinessProbe": False, "livenessProbe": True}
