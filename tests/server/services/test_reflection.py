"""Reflection describes the contract completely, for tools that print and read messages as JSON."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.clients.grpc_types import EOF
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.rpc.open_calls import OpenCalls
from voxcpm_server.services.reflection import Reflection


async def test_fields_have_their_names_in_json(serve_front):
    async with serve_front() as served:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(served.channel)
        call = stub.ServerReflectionInfo()
        name = "voxcpm_grpc.v1.VoxCPMService.Generate"
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
        answer = await call.read()
        await call.done_writing()
    files = map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
    [file] = [file for file in files if file.name == pb.DESCRIPTOR.name]
    found = {message.name: {field.name: field.json_name for field in message.field} for message in file.message_type}
    assert found == {
        name: {field.name: field.json_name for field in message.fields}
        for name, message in pb.DESCRIPTOR.message_types_by_name.items()
    }
    assert found["AudioChunk"]["sample_count"] == "sampleCount"
    nested = [field.json_name for message in file.message_type for one in message.nested_type for field in one.field]
    assert nested and all(nested)


class EndsAsItWrites:
    """The context of a call that is ended while its first answer is being written."""

    def __init__(self, context: grpc.aio.ServicerContext, streams: OpenCalls) -> None:
        self._context = context
        self._streams = streams

    async def write(self, answer: Any) -> None:
        asyncio.get_running_loop().call_soon(self._streams.end, None)
        await self._context.write(answer)


async def test_a_call_that_is_ended_while_an_answer_is_written_gets_its_status():
    """gRPC sends the header with the first answer, and again with the status if that write was cancelled: it fails."""
    streams = OpenCalls()

    class Ending(Reflection):
        async def answer(self, requests: Any, context: Any) -> None:
            await super().answer(requests, EndsAsItWrites(context, streams))  # type: ignore[arg-type]

    server = grpc.aio.server()
    Ending(streams).register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(HANG_SECONDS):
            stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # pyright: ignore[reportArgumentType]
            call = stub.ServerReflectionInfo()
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            assert (await call.read()).list_services_response.service
            assert await call.read() is EOF
            assert await call.code() is grpc.StatusCode.OK
    finally:
        await server.stop(None)
