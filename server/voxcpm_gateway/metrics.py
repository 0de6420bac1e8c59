"""The metrics of a gateway, for Prometheus. The server has metrics of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxcpm_gateway.exchange import Exchange

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
FIRST_AUDIO = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30)
UNKNOWN_ROUTE = "other"


class GatewayMetrics:
    """Counts requests. All names start with `voxcpm_gateway_`.

    folder: of the metrics of all gateways on the same port, whose sums each of them shows; None if there is one
    """

    def __init__(self, folder: Path | None = None) -> None:
        import prometheus_client as prometheus

        self._folder = folder
        self.registry: CollectorRegistry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)

        def make(kind: Any, name: str, help: str, labels: tuple[str, ...] = (), **options: Any) -> Any:
            return kind(f"voxcpm_gateway_{name}", help, labels, registry=self.registry, **options)

        self._requests = make(
            prometheus.Counter, "requests_total", "Requests that have ended, by route and status.", ("route", "status")
        )
        self._gone = make(
            prometheus.Counter, "clients_gone_total", "Requests whose client went away before the end.", ("route",)
        )
        self._open = make(prometheus.Gauge, "open_requests", "Requests in progress.", multiprocess_mode="livesum")
        self._seconds = make(
            prometheus.Histogram, "request_seconds", "Duration of a request.", ("route",), buckets=SECONDS
        )
        self._first_audio = make(
            prometheus.Histogram,
            "time_to_first_audio_seconds",
            "Time from the arrival of a request to its first audio.",
            ("route",),
            buckets=FIRST_AUDIO,
        )
        self._bytes = make(prometheus.Counter, "sent_bytes_total", "Bytes of bodies that were sent.", ("route",))

    def began(self) -> None:
        self._open.inc()

    def ended(self, exchange: Exchange) -> None:
        """Count a request that has ended."""
        route = exchange.route or UNKNOWN_ROUTE
        self._open.dec()
        self._requests.labels(route, str(exchange.status)).inc()
        self._seconds.labels(route).observe(exchange.seconds)
        self._bytes.labels(route).inc(exchange.sent_bytes)
        if exchange.first_audio_seconds is not None:
            self._first_audio.labels(route).observe(exchange.first_audio_seconds)
        if exchange.code == "client_gone":
            self._gone.labels(route).inc()

    def page(self) -> tuple[bytes, str]:
        """The page /metrics, and its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        registry = self.registry
        if self._folder is not None:
            from prometheus_client.multiprocess import MultiProcessCollector

            registry = CollectorRegistry()
            MultiProcessCollector(registry, self._folder)
        return generate_latest(registry), CONTENT_TYPE_LATEST
