"""Traces of RPCs for OpenTelemetry, sent to a collector over OTLP."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import grpc

from voxcpm_grpc import __version__
from voxcpm_grpc.errors import StartupError, VoxCPMError, code_of
from voxcpm_grpc.network.proxies import DIRECT, proxy_of
from voxcpm_grpc.settings.operation import TracingSettings
from voxcpm_server.speech.timing import SegmentTiming

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

SERVICE_NAME = "voxcpm-grpc"
FLUSH_SECONDS = 2.0  # seconds at the end, for the spans that wait
NANOSECONDS = 1e9
# These loggers warn of wrong metadata of callers, and quote it.
CALLERS_FAULTS = ("opentelemetry.trace.span", "opentelemetry.trace.propagation.tracecontext")
# OpenTelemetry calls these codes faults of a server. Others leave the status of its span unset.
FAULTS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}


class Tracing:
    """Makes a span for each RPC that is sampled, with the caller's span as its parent.

    Spans are sent in the background by a thread. If the collector does not answer, they are dropped.
    """

    def __init__(
        self,
        settings: TracingSettings,
        service: str,
        exporter: SpanExporter | None = None,
        contracts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Raises StartupError if the packages of OpenTelemetry are not installed.

        service: name of the gRPC service
        exporter: takes the place of the one that sends spans to `settings.endpoint`
        contracts: names of other services by what stands, with a full stop, before the names of their methods
        """
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
            from opentelemetry.trace import SpanKind, set_span_in_context
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise StartupError("tracing.endpoint needs packages: pip install 'voxcpm-grpc[tracing]'") from None
        for name in CALLERS_FAULTS:
            logging.getLogger(name).setLevel(logging.ERROR)
        resource = Resource(
            {
                "service.name": SERVICE_NAME,
                "service.version": __version__,
                "service.instance.id": str(uuid.uuid4()),  # each front is an instance
            }
        ).merge(OTELResourceDetector().detect())  # it reads OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        self._exporter = exporter or OTLPSpanExporter(
            endpoint=settings.endpoint, channel_options=_channel_options(settings.endpoint or "")
        )
        ratio = settings.sample_ratio
        # Without a ratio, OTEL_TRACES_SAMPLER has it.
        sampler = None if ratio is None else ParentBased(TraceIdRatioBased(ratio))
        self._provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer(SERVICE_NAME, __version__)
        self._extract = TraceContextTextMapPropagator().extract
        self._in_context = set_span_in_context
        self._kind = SpanKind.SERVER
        self._service = service
        self._contracts = contracts

    def begin(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> RpcTrace | None:
        """Begin the trace of an RPC. Returns None if it is not sampled."""
        now = time.time_ns()
        carrier = {name: value for name, value in metadata if isinstance(value, str)}
        contract, _, method = method.rpartition(".")
        service = self._contracts.get(contract, self._service)
        span = self._tracer.start_span(
            f"{service}/{method}",
            self._extract(carrier),
            self._kind,
            {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method},
            start_time=now,
        )
        if not span.is_recording():
            return None
        return RpcTrace(self._tracer, span, self._in_context(span), now - time.monotonic_ns())

    async def close(self) -> None:
        """Send the spans that wait, for at most FLUSH_SECONDS, and drop the others."""
        loop, flushed = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self._provider.force_flush()
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(flushed.set)

        # The loop's executor does not run it, because the end of the loop would wait for that.
        threading.Thread(target=flush, name="last traces", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await flushed.wait()
        except TimeoutError:
            self._exporter.shutdown()  # the export in progress ends
        else:
            self._provider.shutdown()


class RpcTrace:
    """The trace of one RPC: its span, and those of its segments.

    offset: nanoseconds from the clock of time.monotonic() to that of time.time()
    """

    def __init__(self, tracer: Any, span: Span, context: Any, offset: int) -> None:
        self._tracer = tracer
        self._span = span
        self._context = context
        self._offset = offset

    @property
    def id(self) -> str:
        """The id of the trace, 32 hexadecimal digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def add_segment(self, timing: SegmentTiming) -> None:
        """Add the span of a segment that has ended, with a span for each of its phases."""
        from opentelemetry.trace import set_span_in_context

        began, ended = timing.submitted, timing.ended
        attributes = {
            "voxcpm.turn": timing.segment.turn,
            "voxcpm.segment": timing.segment.index,
            "voxcpm.characters": len(timing.segment.text),
            "voxcpm.engine": timing.engine,
            "voxcpm.steps": timing.steps,
            "voxcpm.prompt_tokens": timing.prompt_tokens,
            "voxcpm.cached_tokens": timing.cached_tokens,
        }
        if timing.engine_seconds is not None:
            attributes["voxcpm.engine_seconds"] = timing.engine_seconds
        span = self._start("segment", began, self._context, attributes)
        first_audio = ended if timing.first_audio is None else timing.first_audio
        admitted = ended if timing.queue_seconds is None else min(began + timing.queue_seconds, first_audio)
        context = set_span_in_context(span)
        self._phase("queue", began, admitted, context)
        if timing.queue_seconds is not None:
            self._phase("first audio", admitted, first_audio, context)
        if timing.first_audio is not None:
            self._phase("generation", first_audio, ended, context)
        if isinstance(timing.error, asyncio.CancelledError):
            span.set_attribute("error.type", "CANCELLED")
        elif timing.error is not None:
            error = timing.error
            code, message = (code_of(error), error.message) if isinstance(error, VoxCPMError) else ("INTERNAL", "")
            _record_error(span, code, message)
        span.end(self._time(ended))

    def end(self, code: str, error: VoxCPMError | None, **attributes: str | int | float | None) -> None:
        """End the span of the RPC, with those attributes that are not None."""
        span = self._span
        span.set_attribute("rpc.grpc.status_code", grpc.StatusCode[code].value[0])
        span.set_attributes({f"voxcpm.{key}": value for key, value in attributes.items() if value is not None})
        if code != "OK":
            _record_error(span, code, error.message if error else "")
        span.end()

    def _phase(self, name: str, began: float, ended: float, context: Any) -> None:
        self._start(name, began, context, {}).end(self._time(ended))

    def _start(self, name: str, began: float, context: Any, attributes: dict[str, Any]) -> Span:
        return self._tracer.start_span(name, context, attributes=attributes, start_time=self._time(began))

    def _time(self, seconds: float) -> int:
        return int(seconds * NANOSECONDS) + self._offset


def _channel_options(endpoint: str) -> Any:
    """Options of gRPC that keep the proxy of the environment from a collector that is to be reached directly."""
    collector = urlsplit(endpoint)
    return () if proxy_of(collector.hostname or "", collector.port or 0) else DIRECT


def _record_error(span: Span, code: str, message: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", code)
    if message:
        span.add_event("exception", {"exception.type": code, "exception.message": message})
    if code in FAULTS:
        span.set_status(StatusCode.ERROR, message or None)
