"""The standard health and reflection services, for load balancers and tools."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from voxcpm_server.rpc.handler import SERVICE

STATUS = health_pb2.HealthCheckResponse


class Health:
    """grpc.health.v1 for the whole server ("") and for the service. Starts as NOT_SERVING."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]

    async def register(self, server: grpc.aio.Server) -> None:
        await self.set(serving=False)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set(self, *, serving: bool) -> None:
        for name in ("", SERVICE):
            await self._servicer.set(name, STATUS.SERVING if serving else STATUS.NOT_SERVING)

    async def shut_down(self) -> None:
        """Report NOT_SERVING from now on, whatever `set` reports later."""
        await self._servicer.enter_graceful_shutdown()


def enable_reflection(server: grpc.aio.Server) -> None:
    """Add the reflection service as v1alpha and v1, which clients use and which have the same messages.

    The list of services omits v1 because the package has no descriptor of it, and tools stop at a service without one.
    """
    v1 = "grpc.reflection.v1.ServerReflection"
    names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    handler = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(names).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(v1, {"ServerReflectionInfo": handler}),))
