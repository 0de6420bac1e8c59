"""Health, reflection and model info of a real server. Its errors are tested in tests/conformance."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from support.clients.grpc_types import health_stub

from voxcpm_client import InvalidArgument

SERVICE = "voxcpm_grpc.v1.VoxCPMService"
SERVING = health_pb2.HealthCheckResponse.SERVING


def test_health(channel, client):
    assert client.health()
    health = health_stub(channel)
    for name in ("", SERVICE, "liveness"):
        request = health_pb2.HealthCheckRequest(service=name)
        assert health.Check(request, timeout=300).status == SERVING
        watch = health.Watch(request, timeout=300)
        assert next(watch).status == SERVING
        watch.cancel()
    with pytest.raises(grpc.RpcError) as raised:
        health.Check(health_pb2.HealthCheckRequest(service="missing"), timeout=300)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


REFLECTION = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")


@pytest.fixture(params=REFLECTION)
def reflect(channel, request):
    """Sends requests to the reflection service in one call, and returns the answers."""
    method = channel.stream_stream(
        f"/{request.param}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    return lambda *requests: list(method(iter(requests), timeout=300))


def test_reflection_lists_its_services_and_describes_them(reflect):
    [listing] = reflect(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = [service.name for service in listing.list_services_response.service]
    assert {SERVICE, "grpc.health.v1.Health", *REFLECTION} <= set(names)
    for name in names:
        assert name in described(reflect, name), name


@pytest.mark.parametrize(
    ("symbol", "service"),
    [
        (f"{SERVICE}.Generate", SERVICE),
        ("grpc.health.v1.Health.Watch", "grpc.health.v1.Health"),
        ("grpc.reflection.v1.ServerReflection.ServerReflectionInfo", "grpc.reflection.v1.ServerReflection"),
    ],
)
def test_reflection_describes_methods(reflect, symbol, service):
    assert service in described(reflect, symbol)


def test_reflection_finds_no_symbol_that_does_not_exist(reflect):
    for symbol in (f"{SERVICE}.Sing", "voxcpm_grpc.v1.Nothing", "Nothing", ""):
        [answer] = reflect(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
        assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0], symbol


def described(reflect, symbol: str) -> list[str]:
    """The services in the file that reflection returns for a symbol."""
    [answer] = reflect(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
    files = map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
    return [f"{file.package}.{service.name}" for file in files for service in file.service]


def test_the_model_is_described(info):
    assert info.model and info.server_version
    assert info.output_sample_rate in info.sample_rates
    assert info.default_timesteps in info.inference_timesteps
    assert info.samples_per_step > 0 and info.max_slots > 0


def test_an_error_names_its_field_and_its_request(client):
    with pytest.raises(InvalidArgument) as raised:
        client.say("Hello.", cfg_value=99.0, request_id="my-call")
    assert "cfg_value" in raised.value.field
    assert raised.value.request_id == "my-call"
