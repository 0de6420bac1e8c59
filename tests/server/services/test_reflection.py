"""Reflection describes the contract completely, for tools that print and read messages as JSON."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from voxcpm_grpc.v1 import tts_pb2 as pb


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
