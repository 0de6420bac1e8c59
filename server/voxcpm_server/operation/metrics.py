"""Metrics of a server process for Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import ModelInfo
from voxcpm_server.operation.merged_metrics import new_registry

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from voxcpm_server.operation.loop_load import LoopLoad
    from voxcpm_server.rpc.call import AdmissionGate, Call
    from voxcpm_server.voices.uploads import UploadBudget

log = logging.getLogger(__name__)

FIRST_AUDIO_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30)
SECONDS_BUCKETS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
FACTOR_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 5)

# Each row has a name, a help text and an attribute of `Stats`. A name that ends with _total is that of a counter.
ENGINE_FAMILIES = (
    ("requests_running", "Requests that have a slot of the engine.", "running"),
    ("requests_waiting", "Requests that wait for their first slot of the engine.", "waiting"),
    (
        "requests_swapped",
        "Streams that have given up their slot, because their client does not read or an interactive stream needed it.",
        "swapped",
    ),
    ("slots_used", "Slots of the engine that are in use.", "slots_used"),
    ("slots", "Slots of the engine.", "slots_total"),
    ("kv_pages_used", "Pages of the KV cache that are in use.", "pages_used"),
    ("kv_pages", "Pages of the KV cache.", "pages_total"),
    ("steps_total", "Steps of the engine.", "steps"),
    ("preemptions_total", "Requests that were computed again for lack of pages.", "preemptions"),
    ("swaps_total", "Streams that gave up their slot, because their client did not read.", "swaps"),
    ("prefix_hit_tokens_total", "Prompt positions that were found in the KV cache.", "prefix_hit_tokens"),
    ("prefill_tokens_total", "Prompt positions that were computed.", "prefill_tokens"),
    ("requests_finished_total", "Requests that finished.", "finished"),
    ("requests_cancelled_total", "Requests that were cancelled.", "cancelled"),
    ("requests_failed_total", "Requests that failed.", "failed"),
)


class Metrics:
    """The metrics of RPCs, streams and engines. All names start with `voxcpm_`."""

    def __init__(self) -> None:
        """Raises StartupError if prometheus-client is not installed."""
        self.registry = new_registry()
        import prometheus_client as prometheus

        prometheus.ProcessCollector(registry=self.registry)
        prometheus.GCCollector(registry=self.registry)

        def counter(name: str, help: str, *labels: str) -> Any:
            return prometheus.Counter(f"voxcpm_{name}", help, labels, registry=self.registry)

        def histogram(name: str, help: str, buckets: tuple[float, ...], *labels: str) -> Any:
            return prometheus.Histogram(f"voxcpm_{name}", help, labels, buckets=buckets, registry=self.registry)

        self._rpcs = counter("rpcs_total", "RPCs that have ended, by method and status code.", "method", "code")
        self._seconds = histogram("rpc_seconds", "Duration of an RPC.", SECONDS_BUCKETS, "method")
        self._first_audio = histogram(
            "first_audio_seconds", "Time from the arrival of the first segment to its audio.", FIRST_AUDIO_BUCKETS
        )
        self._first_audible = histogram(
            "first_audible_seconds",
            "Time from the arrival of the first segment until a listener hears its first sound.",
            FIRST_AUDIO_BUCKETS,
        )
        self._arrival = histogram(
            "time_to_first_audio_seconds",
            "Time from the arrival of a stream to its first audio, with the wait for its text.",
            FIRST_AUDIO_BUCKETS,
        )
        self._queue = histogram("queue_seconds", "Wait of the first segment of a stream for a slot.", SECONDS_BUCKETS)
        self._factor = histogram(
            "real_time_factor", "Time of the engine for a second of a stream's audio.", FACTOR_BUCKETS
        )
        self._audio = counter("audio_seconds_total", "Audio that was sent.", "method")
        self._characters = counter("characters_total", "Text of streams that have ended.")
        self._model_rpcs = counter(
            "model_rpcs_total", "RPCs with a model that have ended, by model and status code.", "model", "code"
        )
        self._model_audio = counter("model_audio_seconds_total", "Audio that was sent, by model.", "model")
        self._model_first_audio = histogram(
            "model_first_audio_seconds",
            "Time from the arrival of the first segment to its audio, by model.",
            FIRST_AUDIO_BUCKETS,
            "model",
        )
        self._left_unread = counter(
            "model_text_left_unread_total",
            "Segments whose speech the model ended before it had read their text.",
            "model",
        )
        self._underruns = counter("underruns_total", "Gaps inside a segment that a listener has heard, by estimate.")
        self._underrun_seconds = counter("underrun_seconds_total", "Length of these gaps.")
        self._smooth = counter("streams_without_underrun_total", "Streams with audio that had no such gap.")
        self._gauges: Sequence[tuple[str, str, Callable[[], float]]] = ()
        self._pools: Sequence[EnginePool] = ()
        self.registry.register(self)  # pyright: ignore[reportArgumentType]

    def watch(self, pools: Sequence[EnginePool], gate: AdmissionGate, uploads: UploadBudget, load: LoopLoad) -> None:
        """Export the models, the statistics of their engines, and the gauges of this process from now on."""
        self._pools = pools
        self._gauges = (  # the thread of a scrape reads them
            ("open_streams", "Streams that are open.", lambda: gate.streams),
            ("upload_bytes", "Recordings of uploads in memory.", lambda: uploads.held),
            ("front_loop_busy", "Share of the time in which the event loop has work.", lambda: load.busy),
            ("front_loop_lag_seconds", "Longest delay of the event loop lately.", lambda: load.lag),
            ("front_full", "1 if the event loop has work almost all of the time.", lambda: load.full),
        )

    def ended(self, call: Call, code: str, seconds: float) -> None:
        """Count an RPC that has ended."""
        summary = call.summary
        self._rpcs.labels(call.method, code).inc()
        self._seconds.labels(call.method).observe(seconds)
        if call.audio_seconds:
            self._audio.labels(call.method).inc(call.audio_seconds)
        if call.model:
            self._model_rpcs.labels(call.model, code).inc()
            if call.audio_seconds:
                self._model_audio.labels(call.model).inc(call.audio_seconds)
            self._left_unread.labels(call.model).inc(summary.left_unread if summary else 0)
            if summary and summary.first_audio_seconds is not None:
                self._model_first_audio.labels(call.model).observe(summary.first_audio_seconds)
        if call.characters:
            self._characters.inc(call.characters)
        if summary is not None:
            for histogram, value in (
                (self._queue, summary.queue_seconds),
                (self._first_audio, summary.first_audio_seconds),
                (self._first_audible, summary.first_audible_seconds),
                (self._arrival, call.arrival_to_audio_seconds),
                (self._factor, summary.engine / call.audio_seconds if call.audio_seconds else None),
            ):
                if value is not None:
                    histogram.observe(value)
        if (playback := call.playback) is not None:
            self._underruns.inc(playback.underruns)
            self._underrun_seconds.inc(playback.underrun_seconds)
            if call.audio_seconds and not playback.underruns:
                self._smooth.inc()

    def collect(self) -> Iterator[Metric]:
        """The gauges and the statistics of the engines. Called by the thread of a scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        for name, help, value in self._gauges:
            yield GaugeMetricFamily(f"voxcpm_{name}", help, value=value())
        if not self._pools:
            return
        info = InfoMetricFamily("voxcpm_model", "A model that is served.")
        ready = GaugeMetricFamily("voxcpm_model_engines_ready", "Engines that take requests.", labels=("model",))
        loras = GaugeMetricFamily("voxcpm_model_loras", "LoRA adapters for requests.", labels=("model",))
        waiting = GaugeMetricFamily(
            "voxcpm_model_requests_waiting", "Requests that wait for an engine that restarts.", labels=("model",)
        )
        moved = CounterMetricFamily(
            "voxcpm_model_continuations", "Times that another engine went on with a stream.", labels=("model",)
        )
        for pool in self._pools:
            moved.add_metric((pool.info.name,), pool.continuations)
            info.add_metric((), _model(pool.info))
            waiting.add_metric((pool.info.name,), pool.waiting_for_engine)
            loras.add_metric((pool.info.name,), len(pool.adapters.registered))
            ready.add_metric((pool.info.name,), sum(replica.ready for replica in pool.replicas))
        yield from (info, ready, loras, waiting, moved)
        up = GaugeMetricFamily("voxcpm_engine_up", "1 if the engine takes requests.", labels=("engine",))
        restarts = CounterMetricFamily("voxcpm_engine_restarts", "Restarts of a lost engine.", labels=("engine",))
        families: list[Any] = []
        for name, help, _ in ENGINE_FAMILIES:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            families.append(kind(f"voxcpm_engine_{name}", help, labels=("engine",)))
        seconds = CounterMetricFamily("voxcpm_engine_step_seconds", "Time of all steps.", labels=("engine",))
        serves = InfoMetricFamily("voxcpm_engine", "The model of an engine.")
        for model, replica in [(pool.info.name, replica) for pool in self._pools for replica in pool.replicas]:
            if not replica.name:  # no engine has been ready yet
                continue
            serves.add_metric((), {"engine": replica.name, "model": model})
            labels = (replica.name,)
            up.add_metric(labels, float(replica.ready))
            restarts.add_metric(labels, float(replica.restarts.count))
            if (found := replica.stats) is not None:
                for family, (_, _, attribute) in zip(families, ENGINE_FAMILIES, strict=True):
                    family.add_metric(labels, float(getattr(found.stats, attribute)))
                seconds.add_metric(labels, found.step_seconds)
        yield from (serves, up, restarts, *families, seconds)

    def describe(self) -> Iterator[Metric]:
        """Nothing: the families are known when they are collected."""
        return iter(())


def _model(info: ModelInfo) -> dict[str, str]:
    return {"name": info.name, "architecture": info.architecture, "device": info.device, "dtype": info.dtype}
