"""A collector of traces on the loopback interface."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service


@dataclass
class Collector(service.TraceServiceServicer):
    """Receives spans over OTLP."""

    endpoint: str = ""
    received: list[Any] = field(default_factory=list)  # ResourceSpans

    def Export(self, request: Any, context: Any) -> Any:
        self.received += request.resource_spans
        return messages.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Any]:
        return [span for resource in self.received for scope in resource.scope_spans for span in scope.spans]

    @property
    def resources(self) -> list[dict[str, str]]:
        """The attributes of the processes that have sent spans."""
        return [{pair.key: pair.value.string_value for pair in one.resource.attributes} for one in self.received]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector inside the block."""
    server = grpc.server(ThreadPoolExecutor(2))
    collector = Collector()
    service.add_TraceServiceServicer_to_server(collector, server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
