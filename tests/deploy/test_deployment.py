"""The files of server/deploy fit the settings, the metrics and each other. tests/system/deploy runs what reads them."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml
from support.servers import deployment
from support.servers.proxies import EXAMPLES, SERVERS, addresses, envoy_config, nginx_config

from voxcpm_gateway import serving
from voxcpm_grpc.pool.engines import host, local
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.sources import load
from voxcpm_server import http_process
from voxcpm_server.operation.metrics import ENGINE_FAMILIES, Metrics

OF_THE_SERVER = {"voxcpm_open_streams", "voxcpm_upload_bytes", "voxcpm_model_info"}
OF_ENGINES = {"voxcpm_engine_up", "voxcpm_engine_restarts_total", "voxcpm_engine_step_seconds_total"}
SERIES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "info": ("_info",)}


def exported() -> set[str]:
    """The names of all series that a server exports."""
    families = list(Metrics().registry.collect())
    names = {family.name + suffix for family in families for suffix in SERIES[family.type]}
    engines = {f"voxcpm_engine_{name}" for name, _, _ in ENGINE_FAMILIES}
    return names | engines | OF_THE_SERVER | OF_ENGINES


def test_dashboard_alerts_and_autoscaling_use_metrics_that_exist():
    scaled = deployment.document(deployment.KUBERNETES / "components/autoscaling/scaledobject.yaml")
    triggers = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    queries = [query for _, query in deployment.queries()] + [rule["expr"] for rule in deployment.rules()] + triggers
    used = set().union(*map(deployment.metrics_of, queries))
    assert used - exported() == set()
    assert all(deployment.metrics_of(query) or "up{" in query for query in queries)


def test_the_dashboard_shows_every_metric_of_the_server():
    shown = set().union(*(deployment.metrics_of(query) for _, query in deployment.queries()))
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported() if name.startswith("voxcpm_")}
    assert families - stems == set()


def test_panels_neither_overlap_nor_share_an_id():
    panels = deployment.panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_alerts_are_the_same_for_compose_and_kubernetes():
    rules = deployment.document(deployment.KUBERNETES / "components/monitoring/rules.yaml")
    assert rules["spec"] == deployment.document(deployment.ALERTS)
    [job] = deployment.document(deployment.PROMETHEUS)["scrape_configs"]
    assert all(f'job="{job["job_name"]}"' in rule["expr"] for rule in deployment.rules())


def test_the_page_explains_every_alert():
    page = (deployment.ROOT / "docs/deploy.md").read_text("utf-8")
    assert [rule["alert"] for rule in deployment.rules() if f"`{rule['alert']}`" not in page] == []


def test_a_pod_has_more_time_than_its_hook_and_its_drain():
    pod = deployment.document(deployment.KUBERNETES / "base/deployment.yaml")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    settings = load([], deployment.environment(deployment.KUBERNETES / "base/settings.env"))
    hook = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    for drain in (settings, Settings()):
        assert drain.drain_delay_seconds < drain.drain_seconds
        steps = hook + drain.drain_delay_seconds + drain.drain_seconds + deployment.STOP_SECONDS
        assert pod["terminationGracePeriodSeconds"] > steps
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert settings.listen == f"0.0.0.0:{ports['grpc']}"
    assert settings.metrics.listen == f"0.0.0.0:{ports['metrics']}"
    assert settings.http.listen == f"0.0.0.0:{ports['http']}"
    probes = {name: value["grpc"] for name, value in container.items() if name.endswith("Probe")}
    assert probes == {
        "startupProbe": {"port": ports["grpc"]},
        "readinessProbe": {"port": ports["grpc"]},
        "livenessProbe": {"port": ports["grpc"], "service": "liveness"},
    }


def test_the_times_of_an_end_add_up():
    assert serving.STOP_SECONDS < http_process.STOP_SECONDS, "a gateway ends by itself"
    assert http_process.STOP_SECONDS < host.LEAVE_SECONDS, "a front ends by itself, with its gateway"
    assert http_process.STOP_SECONDS + local.STOP_SECONDS <= deployment.STOP_SECONDS, "a server without fronts"
    text = deployment.DOCKERFILE.read_text("utf-8")
    pages = text + (deployment.ROOT / "docs/deploy.md").read_text("utf-8")
    given = [int(seconds) for seconds in re.findall(r"docker stop -t (\d+)", pages)]
    assert len(given) == 2 and min(given) > Settings().drain_seconds + deployment.STOP_SECONDS


def test_a_container_of_compose_has_more_time_than_its_drain():
    services = deployment.document(deployment.COMPOSE)["services"]
    for name in ("cpu", "gpu"):
        variables = {
            key: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value)
            for key, value in services[name]["environment"].items()
            if key.startswith("VOXCPM_")
        }
        settings = load([], variables)
        assert (
            deployment.seconds(services[name]["stop_grace_period"]) > settings.drain_seconds + deployment.STOP_SECONDS
        )
        published = {port.rpartition(":")[2] for port in services[name]["ports"]}
        assert published == {"50051", "8000"}
    for service in services.values():
        assert all(re.match(r"\$\{\w+:-127\.0\.0\.1:", port) for port in service["ports"]), "open to other hosts"


def test_images_install_a_torch_that_is_supported_and_only_sources():
    text = deployment.DOCKERFILE.read_text("utf-8")
    made = (deployment.ROOT / "Makefile").read_text("utf-8")
    [expected] = re.findall(r"^TORCH_VERSION \?= (\S+)", made, re.MULTILINE)
    assert set(re.findall(r"TORCH_VERSION=(\S+)", text)) == {expected}
    extras = tomllib.loads((deployment.ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    [named] = re.findall(r'ARG EXTRAS="(.*)"', text)
    assert {"server", "http", "normalize"} <= set(named.split()) <= set(extras)
    settings = load([], {name: value for name, value in deployment.image_variables().items() if "VOXCPM_" in name})
    listening = {settings.listen, settings.http.listen, settings.metrics.listen}
    assert listening == {"0.0.0.0:50051", "0.0.0.0:8000", "0.0.0.0:9464"}
    [exposed] = re.findall(r"^EXPOSE (.*)", text, re.MULTILINE)
    assert {f"0.0.0.0:{port}" for port in exposed.split()} == listening


@pytest.mark.parametrize("name", ["haproxy.cfg", "nginx.conf", "envoy.yaml"])
def test_load_balancers_wait_longer_than_a_stream_may_be_silent(name):
    text = (EXAMPLES / name).read_text("utf-8")
    silent = Settings().limits.stream_idle_seconds
    pattern = {
        "haproxy.cfg": r"timeout (?:client|server) (\d+m)",
        "nginx.conf": r"(?:keepalive_timeout|client_body_timeout|grpc_read_timeout|grpc_send_timeout) (\d+m)",
        "envoy.yaml": r"idle_timeout: (\d+s)",
    }[name]
    waits = [deployment.seconds(found) for found in re.findall(pattern, text)]
    assert len(waits) >= 2
    assert min(waits) > silent


def test_the_tests_of_load_balancers_run_the_examples_themselves(tmp_path):
    address, servers = "127.0.0.1:1", ("127.0.0.1:2", "127.0.0.1:3")
    nginx, envoy = nginx_config(tmp_path, address, servers), envoy_config(address, servers)
    for name, configured in (("nginx.conf", nginx), ("envoy.yaml", envoy)):
        assert addresses((EXAMPLES / name).read_text("utf-8")) == set(SERVERS)
        assert addresses(configured) == set()
    assert yaml.safe_load(envoy)["static_resources"]["clusters"][0]["health_checks"][0]["grpc_health_check"] == {}
