"""The services of a port that clients of other servers speak, and the handlers of any service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from voxcpm_server.services.handler import parsed

if TYPE_CHECKING:
    from voxcpm_server.models import Models
    from voxcpm_server.services.speech import VoxCPMService

# The keys tell whether the client and the server stream.
MAKERS: Mapping[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


@dataclass(frozen=True, slots=True)
class Contract:
    """A service that speaks as a client of another server expects it.

    name: of the setting `contracts`, and before the names of its methods in logs and metrics
    descriptor: the service, in a pool of its own or in the default one
    implement: makes the object with its methods
    """

    name: str
    descriptor: ServiceDescriptor
    implement: Callable[[VoxCPMService, Models], Any]


def handlers(descriptor: ServiceDescriptor, methods: Any) -> dict[str, grpc.RpcMethodHandler]:
    """The handlers of a service by the names of its RPCs, for each of which `methods` has a method under `rpc`."""
    found: dict[str, grpc.RpcMethodHandler] = {}
    for method in descriptor.methods:
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        make = MAKERS[method.client_streaming, method.server_streaming]
        found[method.name] = make(
            getattr(methods, method.name),
            request_deserializer=partial(parsed, request),
            response_serializer=response.SerializeToString,
        )
    return found
