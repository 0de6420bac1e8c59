"""The start and the stop of a server under calls: health, streams in progress, and streams that take too long."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from support.clients.grpc_types import EOF, health_stub
from support.servers.ports import free_address
from support.servers.running import serving
from support.servers.targets import Service, Target, config, message, refusal, rest
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb

pytestmark = pytest.mark.usefixtures("own")
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
DRAIN_SECONDS = 10


async def test_calls_during_the_start_get_the_time_to_wait(model: Path, tmp_path: Path) -> None:
    """The port is open long before the model is loaded."""
    address = free_address()
    with ExitStack() as stack:
        started = asyncio.create_task(
            asyncio.to_thread(stack.enter_context, serving(tmp_path, "--listen", address, model=model))
        )
        async with Target(address).service() as service:
            code, text, details = await refusal(service.GetModelInfo(pb.GetModelInfoRequest(), wait_for_ready=True))
            assert code is grpc.StatusCode.UNAVAILABLE and "the server is not ready yet" in text
            assert details.request_id and details.retry_seconds is not None and details.retry_seconds >= 1
            assert details.pushback_ms == round(1000 * details.retry_seconds)
            health: Any = health_stub(service.channel)
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == NOT_SERVING
            alive = await health.Check(health_pb2.HealthCheckRequest(service="liveness"))
            assert alive.status == SERVING
            assert (await watch.read()).status == SERVING
            assert (await service.speak(config(), "Hello."))[-1].summary.total_samples
            watch.cancel()
        await started


async def opened(service: Service) -> Any:
    """A stream that has sent audio, and waits for more text."""
    call = service.Generate()
    for body in (config(), "Hello there.", pb.Flush(tag="spoken")):
        await call.write(message(body))
    while (await call.read()).flush_done.tag != "spoken":
        pass
    return call


@pytest.mark.references
async def test_a_stream_that_outlasts_the_drain(model: Path, tmp_path: Path) -> None:
    """Streams in progress go on, those that outlast the drain are cut off, and health tells at once."""
    with serving(tmp_path, "--drain-seconds", str(DRAIN_SECONDS), model=model) as server:
        target = Target(server.address, server=server)
        async with target.service() as service, target.service() as other:
            health: Any = health_stub(other.channel)
            watches = [health.Watch(health_pb2.HealthCheckRequest(service=name)) for name in ("", "liveness")]
            for watch in watches:
                assert (await watch.read()).status == SERVING
            finishing, idle = await opened(service), await opened(service)
            upload = other.AddReference()
            await upload.write(pb.AddReferenceRequest(config=pb.AddReferenceConfig()))
            await other.GetModelInfo(pb.GetModelInfoRequest())  # sent later, so the upload has arrived, too
            server.terminate()
            assert (await watches[0].read()).status == NOT_SERVING
            await finishing.write(message("There is more to come."))
            await finishing.done_writing()
            assert (await rest(finishing))[-1].summary.segments == 2

            code, text, details = await refusal(rest(idle))
            assert code is grpc.StatusCode.ABORTED
            assert f"did not end within its drain_seconds, {DRAIN_SECONDS} s" in text
            assert details.request_id and (details.retry_seconds, details.pushback_ms) == (None, None)
            code, text, details = await refusal(rest(upload))
            assert code is grpc.StatusCode.UNAVAILABLE and "no audio was sent, retry elsewhere" in text
            assert (details.retry_seconds, details.pushback_ms) == (0, 0)
            for watch in watches:
                assert await watch.read() is EOF
                assert await watch.code() is grpc.StatusCode.OK
        assert await asyncio.to_thread(server.process.wait, HANG_SECONDS) == 0
        assert not server.fault(), server.fault()
