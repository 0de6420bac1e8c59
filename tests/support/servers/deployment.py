"""The files of server/deploy, as the tests read them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from voxcpm_grpc.pool.engines import host, local

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "server/deploy"
DOCKERFILE = DEPLOY / "docker/Dockerfile"
COMPOSE = DEPLOY / "compose/compose.yaml"
PROMETHEUS = DEPLOY / "prometheus/prometheus.yml"
ALERTS = DEPLOY / "prometheus/alerts.yml"
DASHBOARD = DEPLOY / "grafana/dashboards/voxcpm-grpc.json"
KUBERNETES = DEPLOY / "kubernetes"
STOP_SECONDS = host.LEAVE_SECONDS + local.STOP_SECONDS  # for fronts, and then engines, after the drain


def document(path: Path) -> Any:
    """The only YAML document of a file."""
    return yaml.safe_load(path.read_text("utf-8"))


def environment(path: Path) -> dict[str, str]:
    """The variables of an .env file."""
    lines = [line for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def image_variables() -> dict[str, str]:
    """The variables of the images."""
    words = [word for line in _instructions("ENV") for word in shlex.split(line)]
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def image_command() -> list[str]:
    """The command of the images, without the first process that holds it."""
    entry, command = (json.loads(_instructions(name)[-1]) for name in ("ENTRYPOINT", "CMD"))
    assert entry[:2] == ["tini", "--"]
    return [*entry[2:], *command]


def image_health_check() -> list[str]:
    """The command of the health check of the images."""
    return json.loads(_instructions("HEALTHCHECK")[-1].partition(" CMD ")[2])


def _instructions(name: str) -> list[str]:
    """The values of the instructions of a name in the stages of the Dockerfile that make the images."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text("utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", text[text.index(" AS runtime") :], re.MULTILINE)


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard, without its rows."""
    return [panel for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Title and query of every target of the dashboard."""
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    return [rule for group in document(ALERTS)["groups"] for rule in group["rules"]]


def metrics_of(query: str) -> set[str]:
    """The names of metrics in a query, with the suffix of a histogram's series."""
    return set(re.findall(r"\b(?:voxcpm|process)_\w+", re.sub(r'"[^"]*"', '""', query)))


def seconds(text: str) -> float:
    """A duration of compose, such as 50s or 1m30s."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)([hms])", text))
