"""A server whose port is open while its model loads."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.rpc.server import RpcServer

SERVICE = "voxcpm_grpc.v1.VoxCPMService"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
async def starting():
    """The channel to a server that loads its model."""
    rpc = RpcServer(Settings(listen="127.0.0.1:0"))
    address = await rpc.open()
    rpc.report_start("the model is loading")
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel
    await rpc.stop()


async def test_calls_are_refused_with_a_time_to_try_again(starting, details_of):
    stub = tts_pb2_grpc.VoxCPMServiceStub(starting)
    names = [method.name for method in pb.DESCRIPTOR.services_by_name["VoxCPMService"].methods]
    assert len(names) == 9
    for name in names:
        method = getattr(stub, name)
        kind = getattr(pb, f"{name}Request")
        call = method(iter([kind()])) if isinstance(method, STREAMING) else method(kind())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            if isinstance(call, grpc.aio.UnaryUnaryCall | grpc.aio.StreamUnaryCall):
                await call
            else:
                await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, name
        assert "the model is loading" in caught.value.details()
        assert details_of(caught.value).retry_seconds == 1.0


STREAMING = (grpc.aio.StreamUnaryMultiCallable, grpc.aio.StreamStreamMultiCallable)


async def test_an_unknown_method_is_unimplemented(starting):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await starting.unary_unary(f"/{SERVICE}/Sing")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_health_is_not_serving_and_liveness_is(starting):
    health = health_pb2_grpc.HealthStub(starting)
    for name, status in (("", NOT_SERVING), (SERVICE, NOT_SERVING), ("liveness", SERVING)):
        assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == status
        watch = health.Watch(health_pb2.HealthCheckRequest(service=name))
        assert (await watch.read()).status == status
        watch.cancel()
    listed = await health.List(health_pb2.HealthListRequest())
    assert {name: answer.status for name, answer in listed.statuses.items()} == {
        "": NOT_SERVING,
        SERVICE: NOT_SERVING,
        "liveness": SERVING,
    }


async def test_reflection_works(starting):
    call = reflection_pb2_grpc.ServerReflectionStub(starting).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=f"{SERVICE}.Generate"))
    assert (await call.read()).file_descriptor_response.file_descriptor_proto
