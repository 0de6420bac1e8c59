"""The metrics of several fronts on one page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from voxcpm_server.operation.merged_metrics import MergedMetrics, snapshot


@dataclass(eq=False)
class Front:
    """A front with an open stream for each of `streams`, and calls that it has counted."""

    streams: int = 0
    restarts: int = 1
    answers: bool = True
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.calls = Counter("voxcpm_rpcs_total", "RPCs.", ("code",), registry=self.registry)
        self.seconds = Histogram("voxcpm_rpc_seconds", "Duration.", buckets=(1, 2), registry=self.registry)
        Gauge("process_resident_memory_bytes", "Memory.", registry=self.registry).set(100)
        self.registry.register(self)  # pyright: ignore[reportArgumentType]

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("voxcpm_open_streams", "Open.", value=self.streams)
        yield GaugeMetricFamily("voxcpm_front_loop_busy", "Busy.", value=self.streams / 10)
        yield GaugeMetricFamily("voxcpm_front_full", "Full.", value=self.streams > 3)
        restarts = CounterMetricFamily("voxcpm_engine_restarts", "Restarts.", labels=("engine",))
        restarts.add_metric(("engine 0",), self.restarts)
        yield restarts
        yield InfoMetricFamily("voxcpm_model", "Model.", {"name": "tiny"})

    def describe(self) -> Iterator[Metric]:
        return iter(())


@dataclass
class Page:
    """The page of fronts, which are known by id."""

    fronts: dict[str, tuple[str, Front]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(MergedMetrics(self._ask))  # pyright: ignore[reportArgumentType]

    def _ask(self) -> tuple[dict[str, str], dict[str, bytes]]:
        names = {id: name for id, (name, _) in self.fronts.items()}
        return names, {id: snapshot(one.registry) for id, (_, one) in self.fronts.items() if one.answers}

    def read(self) -> dict[str, float]:
        """The samples by their names and labels, as the page has them."""
        families = text_string_to_metric_families(generate_latest(self.registry).decode())
        return {
            sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }


@pytest.fixture
def fronts() -> tuple[Page, Front, Front]:
    one, two = Front(streams=3), Front(streams=4)
    return Page({"7": ("front 0", one), "8": ("front 1", two)}), one, two


def test_streams_and_calls_are_summed_and_engines_count_once(fronts):
    page, one, two = fronts
    one.calls.labels("OK").inc(5)
    two.calls.labels("OK").inc(7)
    two.calls.labels("ABORTED").inc()
    one.seconds.observe(0.5)
    two.seconds.observe(1.5)
    found = page.read()
    assert found["voxcpm_open_streams"] == 7
    assert (found["voxcpm_rpcs_total code=OK"], found["voxcpm_rpcs_total code=ABORTED"]) == (12, 1)
    buckets = [found[f"voxcpm_rpc_seconds_bucket le={le}"] for le in ("1.0", "2.0", "+Inf")]
    assert (buckets, found["voxcpm_rpc_seconds_count"], found["voxcpm_rpc_seconds_sum"]) == ([1, 2, 2], 2, 2.0)
    assert found["voxcpm_engine_restarts_total engine=engine 0"] == 1
    assert found["voxcpm_model_info name=tiny"] == 1


def test_what_belongs_to_a_process_has_its_number(fronts):
    found = fronts[0].read()
    assert [found[f"voxcpm_front_loop_busy front={number}"] for number in (0, 1)] == [0.3, 0.4]
    assert found["process_resident_memory_bytes front=0"] == 100
    assert [found[f"voxcpm_front_full front={number}"] for number in (0, 1)] == [0, 1]
    assert "voxcpm_front_loop_busy" not in found


def test_names_and_types_are_those_of_one_front(fronts):
    page, one, _ = fronts
    heads = [
        {line for line in generate_latest(registry).decode().splitlines() if line.startswith("#")}
        for registry in (page.registry, one.registry)
    ]
    assert heads[0] == heads[1]


def test_counters_never_fall_when_a_front_is_lost_or_silent(fronts):
    page, one, two = fronts
    one.calls.labels("OK").inc(5)
    two.calls.labels("OK").inc(7)
    assert page.read()["voxcpm_rpcs_total code=OK"] == 12
    two.answers = False
    assert page.read()["voxcpm_rpcs_total code=OK"] == 12, "its event loop is busy"
    del page.fronts["8"]
    found = page.read()
    assert (found["voxcpm_rpcs_total code=OK"], found["voxcpm_open_streams"]) == (12, 3)
    assert "process_resident_memory_bytes front=1" not in found
    restarted = Front(streams=1)
    page.fronts["9"] = "front 1", restarted
    restarted.calls.labels("OK").inc(2)
    found = page.read()
    assert (found["voxcpm_rpcs_total code=OK"], found["voxcpm_open_streams"]) == (14, 4)
    assert found["voxcpm_engine_restarts_total engine=engine 0"] == 1


def test_a_front_that_is_late_does_not_hide_what_others_know_of_an_engine(fronts):
    page, one, two = fronts
    page.read()
    one.answers, two.restarts = False, 2
    assert page.read()["voxcpm_engine_restarts_total engine=engine 0"] == 2


def test_before_the_first_front_is_ready_the_page_is_empty():
    assert Page().read() == {}
