"""What load balancers and tools ask first: is it serving, and what does it offer."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from voxcpm_server.rpc.handler import SERVICE

STATUS = health_pb2.HealthCheckResponse


class Health:
    """grpc.health.v1 for the whole server ("") and for the service. Begins as NOT_SERVING."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]

    async def register(self, server: grpc.aio.Server) -> None:
        await self.say(serving=False)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def say(self, *, serving: bool) -> None:
        for name in ("", SERVICE):
            await self._servicer.set(name, STATUS.SERVING if serving else STATUS.NOT_SERVING)

    async def shut_down(self) -> None:
        """NOT_SERVING for good."""
        await self._servicer.enter_graceful_shutdown()


def enable_reflection(server: grpc.aio.Server) -> None:
    """Reflection under both names that clients ask for; the two versions are the same on the wire.

    It lists only what it can describe, which v1 is not: tools give up at the first service without a description.
    """
    v1 = "grpc.reflection.v1.ServerReflection"
    names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    answer = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(names).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(v1, {"ServerReflectionInfo": answer}),))
