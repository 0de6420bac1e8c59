"""Server reflection, for tools such as grpcurl: services v1 and v1alpha, which have the same messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from functools import cache
from typing import Any

import grpc
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default, DescriptorPool
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection, reflection_pb2

from voxcpm_server.rpc.open_calls import EndedByShutdown, OpenCalls
from voxcpm_server.services.handler import SERVICE

V1ALPHA = reflection.SERVICE_NAME
V1 = V1ALPHA.replace("v1alpha", "v1")


@cache
def _v1_file() -> bytes:
    """The FileDescriptorProto of the v1 service."""
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    v1 = text_format.Parse(text_format.MessageToString(file).replace("v1alpha", "v1"), FileDescriptorProto())
    return v1.SerializeToString()


class Descriptors:
    """Finds descriptors as a DescriptorPool does, and also those of methods and of the v1 reflection service.

    The package for reflection has a descriptor of v1alpha only, and tools stop at a listed service without one.

    pools: of services that are not in the default one
    """

    def __init__(self, pools: Iterable[DescriptorPool] = ()) -> None:
        own = DescriptorPool()  # another package may add the same file to the default pool, so this is not that one
        own.AddSerializedFile(_v1_file())
        self._pools = (Default(), own, *pools)

    def FindFileContainingSymbol(self, name: str) -> FileDescriptor:
        """The file that defines a symbol, such as a message, a service or a method. Raises KeyError."""
        try:
            return self._find("FindFileContainingSymbol", name)
        except KeyError:
            service, _, method = name.rpartition(".")
            return self._find("FindServiceByName", service).methods_by_name[method].containing_service.file

    def FindFileByName(self, name: str) -> FileDescriptor:
        return self._find("FindFileByName", name)

    def FindMessageTypeByName(self, name: str) -> Descriptor:
        return self._find("FindMessageTypeByName", name)

    def FindExtensionByNumber(self, message: Descriptor, number: int) -> FieldDescriptor:
        return self._find("FindExtensionByNumber", message, number)

    def FindAllExtensions(self, message: Descriptor) -> list[FieldDescriptor]:
        return [extension for pool in self._pools for extension in pool.FindAllExtensions(message)]

    def _find(self, method: str, *args: Any) -> Any:
        """The result of a method of the first pool that has one. Raises KeyError."""
        for pool in self._pools:
            with suppress(KeyError):
                return getattr(pool, method)(*args)
        raise KeyError(args)


class Reflection(reflection.aio.ReflectionServicer):  # pyright: ignore[reportAttributeAccessIssue]
    """The reflection service. `streams` are its open calls; each can be ended. `services` are those of the port."""

    def __init__(
        self, streams: OpenCalls, services: Iterable[str] = (SERVICE,), pools: Iterable[DescriptorPool] = ()
    ) -> None:
        super().__init__((*services, health.SERVICE_NAME, V1, V1ALPHA), pool=Descriptors(pools))
        self._streams = streams

    def register(self, server: grpc.aio.Server) -> None:
        """Add the service as v1 and as v1alpha."""
        method = grpc.stream_stream_rpc_method_handler(
            self.answer,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        for name in (V1, V1ALPHA):
            handler = grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})
            server.add_generic_rpc_handlers((handler,))

    async def answer(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
        """Answer the requests of a call until the client, or the end of `streams`, ends it."""
        with suppress(EndedByShutdown):
            async with self._streams.enter():
                async for answer in self.ServerReflectionInfo(requests, context):  # pyright: ignore[reportGeneralTypeIssues]
                    if answer.HasField("file_descriptor_response"):
                        files = answer.file_descriptor_response.file_descriptor_proto
                        files[:] = map(_with_json_names, files)
                    await _write(context, answer)


async def _write(context: grpc.aio.ServicerContext, answer: Any) -> None:
    """Write an answer. The end of the call waits for it.

    gRPC sends the header with the first answer, and would send it again with the status if this write was cancelled.
    That fails, and the caller gets no status.
    """
    writing = asyncio.ensure_future(context.write(answer))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        with suppress(grpc.aio.BaseError):  # the connection is gone
            await writing
        raise


@cache
def _with_json_names(file: bytes) -> bytes:
    """A FileDescriptorProto with the names of its fields in JSON.

    Python's descriptors lack them, and grpcurl before 1.9 prints the names of the proto file instead.
    """
    proto = FileDescriptorProto.FromString(file)
    messages = list(proto.message_type)
    for message in messages:
        messages.extend(message.nested_type)  # this loop reaches them, too
        for field in message.field:
            first, *others = field.name.split("_")
            field.json_name = first + "".join(word[:1].upper() + word[1:] for word in others)
    return proto.SerializeToString()
