"""The standard health service, for load balancers and probes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc

from voxcpm_grpc.errors import NotFound, Reason
from voxcpm_server.services.handler import SERVICE, status_of

LIVENESS = "liveness"
SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING
UNKNOWN = pb.HealthCheckResponse.SERVICE_UNKNOWN


class Health(health_pb2_grpc.HealthServicer):
    """grpc.health.v1 with three names, and one for each model that has a name in the settings.

    The whole server ("") and its services are SERVING while the server is ready for calls of every model,
    "voxcpm_grpc.v1.VoxCPMService/NAME" while it is ready for those of one model. "liveness" is SERVING from the start
    to the end of the process.
    """

    def __init__(self, services: Iterable[str] = (SERVICE,)) -> None:
        self._services = tuple(services)
        self._ready = False
        self._models: dict[str, bool] = {}
        self._listed: list[str] = []
        self._shutting_down = False
        self._watches_end = False
        self._changed = asyncio.Event()

    def register(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    def set(self, *, ready: bool) -> None:
        """Report that the server is ready, or not. Has no effect after `shut_down`."""
        self._ready = ready and not self._shutting_down
        self._wake()

    def set_model(self, name: str, ready: bool) -> None:
        """Report that a model is ready, or not."""
        self._models[name] = ready
        self._wake()

    def list_models(self, names: Iterable[str]) -> None:
        """Report on these models also by their names."""
        self._listed = list(names)

    @property
    def ready(self) -> bool:
        """True if the server is reported as ready."""
        return self._ready and all(self._models.values())

    def shut_down(self) -> None:
        """Report that the server is not ready, whatever `set` reports later."""
        self._shutting_down = True
        self.set(ready=False)

    def end_watches(self) -> None:
        """End each Watch call, open or new, after it has sent the current status."""
        self._watches_end = True
        self._wake()

    async def Check(self, request: pb.HealthCheckRequest, context: grpc.aio.ServicerContext) -> pb.HealthCheckResponse:
        statuses = self._statuses()
        if request.service not in statuses:
            known = f"health has the services {', '.join(map(repr, statuses))}"
            error = NotFound(known, reason=Reason.SERVICE_NOT_FOUND, service=request.service)
            await context.abort(*status_of(error, ""))
        return pb.HealthCheckResponse(status=statuses[request.service])

    async def List(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        statuses = {name: pb.HealthCheckResponse(status=status) for name, status in self._statuses().items()}
        return pb.HealthListResponse(statuses=statuses)  # pyright: ignore[reportAttributeAccessIssue]

    async def Watch(self, request: pb.HealthCheckRequest, context: grpc.aio.ServicerContext) -> None:
        sent = None
        while True:
            changed, end = self._changed, self._watches_end
            status = self._statuses().get(request.service, UNKNOWN)
            if status != sent:
                await context.write(pb.HealthCheckResponse(status=status))
                sent = status
            if end:
                return
            await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _statuses(self) -> dict[str, pb.HealthCheckResponse.ServingStatus]:
        ready = SERVING if self.ready else NOT_SERVING
        models = {
            f"{SERVICE}/{name}": SERVING if self._ready and self._models.get(name) else NOT_SERVING
            for name in self._listed
        }
        return {"": ready, **dict.fromkeys(self._services, ready), LIVENESS: SERVING, **models}
