"""VoxCPMService before the server is ready: its port is open, and its calls end with UNAVAILABLE."""

from __future__ import annotations

from types import MethodType
from typing import Any

import grpc

from voxcpm_grpc.v1 import tts_pb2, tts_pb2_grpc
from voxcpm_server.rpc.handler import SERVICE, rpc
from voxcpm_server.rpc.metrics import Metrics
from voxcpm_server.rpc.open_calls import OpenCalls
from voxcpm_server.rpc.recent import RecentCalls
from voxcpm_server.rpc.tracing import Tracing


class DeferredService(grpc.GenericRpcHandler):
    """The RPCs of VoxCPMService. `serve` sets their implementation; until then, `calls` must refuse every call."""

    def __init__(
        self, calls: OpenCalls, write_seconds: float, metrics: Metrics | RecentCalls | None, tracing: Tracing | None
    ) -> None:
        self.calls = calls
        self.write_seconds = write_seconds
        self.metrics = metrics
        self.tracing = tracing
        methods = tts_pb2.DESCRIPTOR.services_by_name["VoxCPMService"].methods
        self._handlers = {f"/{SERVICE}/{method.name}": self._refusal(method.name) for method in methods}

    def serve(self, service: tts_pb2_grpc.VoxCPMServiceServicer) -> None:
        registry = _Registry()
        tts_pb2_grpc.add_VoxCPMServiceServicer_to_server(service, registry)  # type: ignore[arg-type]
        self._handlers = registry.handlers

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        return self._handlers.get(handler_call_details.method)

    def _refusal(self, name: str) -> grpc.RpcMethodHandler:
        async def refused(owner: DeferredService, request: Any, call: Any) -> None:
            raise AssertionError("calls are refused until the service is set")

        refused.__name__ = name  # for the log
        bound = MethodType(rpc(stream=True)(refused), self)
        return grpc.stream_stream_rpc_method_handler(bound, bytes, bytes)


class _Registry:
    """Takes the place of a server in generated code, which passes the methods of a service to it."""

    handlers: dict[str, grpc.RpcMethodHandler]

    def add_registered_method_handlers(self, service_name: str, methods: dict[str, grpc.RpcMethodHandler]) -> None:
        self.handlers = {f"/{service_name}/{name}": method for name, method in methods.items()}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        pass
