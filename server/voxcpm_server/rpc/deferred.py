"""The services of a port before the server is ready: the port is open, and their calls end with UNAVAILABLE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any

import grpc

from voxcpm_grpc.v1 import tts_pb2
from voxcpm_server.rpc.contract import Contract, handlers
from voxcpm_server.rpc.handler import rpc
from voxcpm_server.rpc.metrics import Metrics
from voxcpm_server.rpc.open_calls import OpenCalls
from voxcpm_server.rpc.recent import RecentCalls
from voxcpm_server.rpc.tracing import Tracing

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
        self._handlers = {f"/{VOXCPM.full_name}/{one.name}": self._refusal(one.name) for one in VOXCPM.methods}
        for contract in contracts:
            for one in contract.descriptor.methods:
                path = f"/{contract.descriptor.full_name}/{one.name}"
                self._handlers[path] = self._refusal(f"{contract.name}.{one.name}")

    def serve(self, service: Any, contracts: Mapping[str, Any]) -> None:
        """Run the RPCs of VoxCPMService, and of each contract by its name, with methods of these objects."""
        self._handlers = handlers(VOXCPM, service)
        for contract in self._contracts:
            self._handlers |= handlers(contract.descriptor, contracts[contract.name])

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        return self._handlers.get(handler_call_details.method)

    def _refusal(self, name: str) -> grpc.RpcMethodHandler:
        async def refused(owner: DeferredServices, request: Any, call: Any) -> None:
            raise AssertionError("calls are refused until the service is set")

        bound = MethodType(rpc(stream=True, name=name)(refused), self)
        return grpc.stream_stream_rpc_method_handler(bound, bytes, bytes)
