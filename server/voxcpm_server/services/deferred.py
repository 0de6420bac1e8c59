"""The services of a port before the server is ready: the port is open, and their calls end with UNAVAILABLE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any

import grpc

from voxcpm_grpc.v1 import tts_pb2
from voxcpm_server.operation.metrics import Metrics
from voxcpm_server.operation.recent import RecentCalls
from voxcpm_server.rpc.open_calls import OpenCalls
from voxcpm_server.rpc.tracing import Tracing
from voxcpm_server.services.contract import Contract, handlers
from voxcpm_server.services.handler import rpc

VOXCPM = tts_pb2.DESCRIPTOR.services_by_name["VoxCPMService"]


class DeferredServices(grpc.GenericRpcHandler):
    """The RPCs of VoxCPMService and of contracts. `serve` sets what runs them; until then, `calls` must refuse all."""

    def __init__(
        self,
        calls: OpenCalls,
        write_seconds: float,
        metrics: Metrics | RecentCalls | None,
        tracing: Tracing | None,
        contracts: Sequence[Contract] = (),
    ) -> None:
        self.calls = calls
        self.write_seconds = write_seconds
        self.metrics = metrics
        self.tracing = tracing
        self._contracts = contracts
        self._handlers = {
            f"/{descriptor.full_name}/{one.name}": self._refusal(before + one.name)
            for descriptor, before in ((VOXCPM, ""), *((one.descriptor, f"{one.name}.") for one in contracts))
            for one in descriptor.methods
        }

    def serve(self, service: Any, contracts: Mapping[str, Any]) -> None:
        """Run the RPCs of VoxCPMService, and of each contract by its name, with methods of these objects."""
        served = (VOXCPM, service), *((one.descriptor, contracts[one.name]) for one in self._contracts)
        self._handlers = {
            f"/{descriptor.full_name}/{name}": handler
            for descriptor, methods in served
            for name, handler in handlers(descriptor, methods).items()
        }

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        return self._handlers.get(handler_call_details.method)

    def _refusal(self, name: str) -> grpc.RpcMethodHandler:
        async def refused(owner: DeferredServices, request: Any, call: Any) -> None:
            raise AssertionError("calls are refused until the service is set")

        bound = MethodType(rpc(stream=True, name=name)(refused), self)
        return grpc.stream_stream_rpc_method_handler(bound, bytes, bytes)
