"""The metrics of several processes on one page for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.network.addresses import cannot_listen, listen_address

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

# The names of samples begin so.
OF_PROCESS = ("voxcpm_front_", "process_", "python_")  # each front has its own, with its number as a label
OF_ALL = (  # every front reports these of engines and models alike
    "voxcpm_engine_",
    "voxcpm_model_info",
    "voxcpm_model_engines_ready",
    "voxcpm_model_loras",
)
LABEL = "front"


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """A value with its name and labels."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, array_like=True):
    """Samples of one metric, as `prometheus_client.core.Metric` has them."""

    name: str
    help: str
    kind: str
    unit: str
    samples: list[Sample]


_families = msgspec.msgpack.Decoder(list[Family])


def new_registry() -> CollectorRegistry:
    """A registry without metrics. Raises StartupError if prometheus-client is not installed."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        raise StartupError("metrics.listen needs a package: pip install prometheus-client") from None
    return CollectorRegistry()


def snapshot(registry: CollectorRegistry) -> bytes:
    """All metrics of a registry, for a process that merges them. Takes milliseconds."""
    families: list[Family] = []
    for one in registry.collect():
        samples = [Sample(sample.name, sample.labels, float(sample.value)) for sample in one.samples]
        families.append(Family(one.name, one.documentation, one.type, one.unit, samples))
    return msgspec.msgpack.encode(families)


class MergedMetrics:
    """The metrics of several fronts as one collector: sums, and what belongs to one front with its number as a label.

    Counters and histograms of a front that has ended stay in the sums, which so never fall. A front that does not
    answer counts with its last answer.

    ask: returns the names of the fronts that run, such as `front 0`, by the ids of their processes, and the snapshots
        of those that answer by these ids; called by the thread of a scrape
    """

    def __init__(self, ask: Callable[[], tuple[Mapping[str, str], Mapping[str, bytes]]]) -> None:
        self._ask = ask
        self._last: dict[str, list[Family]] = {}  # the keys are ids of fronts
        self._ended = _Sums()
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        """Ask all fronts, and merge. Called by the thread of a scrape."""
        with self._lock:  # an answer that waits for another scrape would be older than the sums
            names, answers = self._ask()
            self._last |= {id: _families.decode(answer) for id, answer in answers.items()}
            for id in self._last.keys() - names.keys():
                self._ended.add(self._last.pop(id), "", ended=True)
            sums = self._ended.copy()
            for id in sorted(self._last, key=lambda id: (id not in answers, names[id])):
                sums.add(self._last[id], names[id].removeprefix("front "))
            return list(sums.metrics())

    def describe(self) -> Iterable[Metric]:
        """Nothing: the families are known when they are collected."""
        return ()


class _Sums:
    """Samples of several fronts, by family, name and labels."""

    def __init__(self) -> None:
        self._heads: dict[str, Family] = {}  # these families have no samples
        self._values: dict[str, dict[tuple[str, frozenset[tuple[str, str]]], Sample]] = {}

    def copy(self) -> _Sums:
        made = _Sums()
        made._heads = dict(self._heads)
        made._values = {name: dict(values) for name, values in self._values.items()}
        return made

    def add(self, families: Iterable[Family], front: str, *, ended: bool = False) -> None:
        """Add the metrics of a front. Of one that has `ended`, only what is summed over time counts."""
        for family in families:
            if ended and family.kind not in ("counter", "histogram"):
                continue
            self._heads.setdefault(family.name, msgspec.structs.replace(family, samples=[]))
            values = self._values.setdefault(family.name, {})
            for sample in family.samples:
                if ended and sample.name.startswith((*OF_PROCESS, *OF_ALL)):
                    continue
                if sample.name.startswith(OF_PROCESS):
                    sample = Sample(sample.name, {LABEL: front, **sample.labels}, sample.value)
                key = sample.name, frozenset(sample.labels.items())
                values[key] = _merged(values.get(key), sample)

    def metrics(self) -> Iterator[Metric]:
        from prometheus_client.core import Metric

        for name, family in self._heads.items():
            metric = Metric(name, family.help, family.kind, family.unit)
            for sample in self._values[name].values():
                metric.add_sample(sample.name, sample.labels, sample.value)
            yield metric


def _merged(earlier: Sample | None, sample: Sample) -> Sample:
    if earlier is None:
        return sample
    if sample.name.startswith(OF_ALL):
        return earlier
    if sample.name.endswith("_created"):  # the result is the time at which the first of the counters was made
        return min(earlier, sample, key=lambda one: one.value)
    return msgspec.structs.replace(earlier, value=earlier.value + sample.value)


@contextmanager
def metrics_page(registry: CollectorRegistry, listen: str) -> Iterator[str]:
    """Serve the page /metrics inside the block, from a thread. Returns its address. Raises StartupError."""
    import prometheus_client as prometheus

    try:
        address = listen_address(listen)
        server, thread = prometheus.start_http_server(address.port, address.host, registry=registry)
    except (OSError, ValueError) as error:
        raise cannot_listen(listen, error) from None
    try:
        yield str(replace(address, port=server.server_port))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
