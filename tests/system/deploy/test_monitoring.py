"""Prometheus with the files that ship, in front of a running server: every query of the dashboard has a result."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.clients.short_speech import SHORT
from support.servers import deployment
from support.servers.ports import free_address
from support.servers.running import serving
from support.servers.waiting import HANG_SECONDS, wait_until

from voxcpm_client import Client, SpeechError

SCRAPE = "250ms"
RATE_INTERVAL = "20s"  # what Grafana puts in place of $__rate_interval; a busy host scrapes late


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """The URL of a Prometheus that scrapes one server. Its configuration is that of compose but for the address."""
    config = deployment.document(deployment.PROMETHEUS)
    config["global"] = {"scrape_interval": SCRAPE, "evaluation_interval": "1s"}
    [job] = config["scrape_configs"]
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")
    shutil.copy(deployment.ALERTS, folder)
    address = free_address()
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(HANG_SECONDS)


def ask(url: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(parameters)}", timeout=60) as answer:
        return json.load(answer)["data"]


def has_numbers(url: str, query: str) -> bool:
    """True if a query has a result, and one that is a number."""
    try:
        found = ask(f"{url}/api/v1/query", query=query)["result"]
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # Prometheus starts
            return False
        raise AssertionError(f"{query}: {error.read().decode()}") from None
    except OSError:  # its port is not open yet
        return False
    return any(not math.isnan(float(one["value"][1])) for one in found)


def as_grafana_asks(query: str) -> str:
    values = {"$__rate_interval": RATE_INTERVAL, "$job": "voxcpm-grpc", "$instance": ".*"}
    for name, value in values.items():
        query = query.replace(name, value)
    assert "$" not in query
    return query


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prometheus in front of a server that speaks all the time."""
    folder, metrics = tmp_path_factory.mktemp("prometheus"), free_address()
    stop = threading.Event()

    def talk(address: str) -> None:
        with Client(address, timeout=HANG_SECONDS) as client:
            while not stop.is_set():
                client.say("Hello. It is late.", **SHORT)
                with pytest.raises(SpeechError):
                    client.get_voice("ref_0000000000000000")

    with serving(folder / "voices", "--metrics.listen", metrics) as server, prometheus(folder, metrics) as url:
        thread = threading.Thread(target=talk, args=(server.address,))
        thread.start()
        try:
            yield url
        finally:
            stop.set()
            thread.join(HANG_SECONDS)


@pytest.mark.parametrize(("title", "query"), list(deployment.queries()), ids=lambda value: value[:40])
def test_a_query_of_the_dashboard_has_a_result(observed, title, query):
    wait_until(lambda: has_numbers(observed, as_grafana_asks(query)))


def test_the_variables_of_the_dashboard_find_the_job_and_its_servers(observed):
    board = json.loads(deployment.DASHBOARD.read_text("utf-8"))
    asked = {one["name"]: one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"}
    assert asked["job"] == "label_values(voxcpm_open_streams, job)"
    wait_until(lambda: has_numbers(observed, "voxcpm_open_streams"))
    labels = {
        name: ask(f"{observed}/api/v1/label/{name}/values", **{"match[]": "voxcpm_open_streams"}) for name in asked
    }
    assert labels["job"] == ["voxcpm-grpc"]
    assert len(labels["instance"]) == 1


def test_the_alert_rules_work_and_a_healthy_server_fires_none(observed):
    wait_until(lambda: has_numbers(observed, "voxcpm_engine_up"))
    wait_until(lambda: all(rule["health"] == "ok" for rule in evaluated(observed)))
    assert len(evaluated(observed)) == len(deployment.rules())
    assert [rule["name"] for rule in evaluated(observed) if rule["state"] == "firing"] == []


def evaluated(url: str) -> list[dict[str, Any]]:
    return [rule for group in ask(f"{url}/api/v1/rules")["groups"] for rule in group["rules"]]


def test_every_alert_fires_on_its_trouble_and_not_on_a_healthy_server(tmp_path):
    cases = Path(__file__).with_name("alerts_test.yml")
    for path in (cases, deployment.ALERTS):
        shutil.copy(path, tmp_path)
    names = {rule["alert"] for rule in deployment.rules()}
    assert all(f'alertname="{name}"' in cases.read_text("utf-8") for name in names)
    done = subprocess.run(["promtool", "test", "rules", tmp_path / cases.name], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_configuration():
    done = subprocess.run(["promtool", "check", "config", deployment.PROMETHEUS], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(deployment.rules())} rules found" in done.stdout


def test_the_dashboard_is_drawn_from_what_prometheus_answers(observed, tmp_path):
    for _, query in deployment.queries():
        wait_until(lambda query=query: has_numbers(observed, as_grafana_asks(query)))
    tool = deployment.ROOT / "tools/draw_dashboard.py"
    picture = tmp_path / "dashboard.png"
    command = [sys.executable, tool, "--prometheus", observed, "--seconds", "60", "--out", picture]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
