"""Calls of any gRPC service by its descriptor, and the field that its errors name."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import BadRequest


class Stub:
    """Has a method for each RPC of a service."""

    def __init__(self, channel: grpc.aio.Channel, service: ServiceDescriptor) -> None:
        for method in service.methods:
            kinds = ("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))
            make = getattr(channel, "_".join(kinds))
            request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
            call = make(
                f"/{service.full_name}/{method.name}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def field_of(error: grpc.aio.AioRpcError) -> str:
    """The field at fault in the BadRequest of a status; empty for none."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            fault = BadRequest()
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(fault):
                    return fault.field_violations[0].field
    return ""
