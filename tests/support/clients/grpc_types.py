"""Parts of grpc that its type stubs leave out."""

from __future__ import annotations

from typing import Any, Protocol, overload

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

EOF: object = vars(grpc.aio)["EOF"]
"""The message that `read` of an asynchronous call returns after the last one."""

CLIENT_TOO_LATE = "Internal error from Core"
"""The message of an asynchronous call whose deadline passes before the client's first write."""


class BlockingHealth(Protocol):
    """The methods of a HealthStub on a blocking channel."""

    Check: grpc.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]
    Watch: grpc.UnaryStreamMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]


class AsyncHealth(Protocol):
    """The methods of a HealthStub on an asynchronous channel."""

    Check: grpc.aio.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]
    Watch: grpc.aio.UnaryStreamMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]


@overload
def health_stub(channel: grpc.Channel) -> BlockingHealth: ...
@overload
def health_stub(channel: grpc.aio.Channel) -> AsyncHealth: ...
def health_stub(channel: grpc.Channel | grpc.aio.Channel) -> Any:
    """A HealthStub with its methods."""
    return health_pb2_grpc.HealthStub(channel)


def message_of(error: grpc.RpcError) -> str:
    """The message of the status of a failed call. The status must have one."""
    message = error.details()
    assert message is not None
    return message
