"""Load reports of ORCA, as a load balancer receives them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from support.operated import SLOTS, Operated, operated
from support.waiting import HANG_SECONDS

from voxcpm_grpc.settings.operation import MetricsSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.rpc.orca_messages import OrcaLoadReport, OrcaLoadReportRequest

REPORTS = MetricsSettings(orca=True)
# As the official messages (xds-protos) encode them.
OFFICIAL_REPORT = (
    "09000000000000e03f11000000000000d03f2a100a05736c6f747311000000000000e83f310000000000000440"
    "39000000000000e03f42100a05717565756511000000000000084049000000000000f83f"
)
OFFICIAL_REQUEST = "0a0808011080cab5ee01"


def watch(server: Operated, seconds: float) -> Any:
    """The load reports of a server."""
    request = OrcaLoadReportRequest()
    request.report_interval.FromMilliseconds(round(1000 * seconds))
    method = server.serving.unary_stream(
        "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
        OrcaLoadReportRequest.SerializeToString,
        OrcaLoadReport.FromString,
    )
    return method(request)


def test_the_messages_are_encoded_as_the_official_ones():
    report = OrcaLoadReport(
        cpu_utilization=0.5,
        mem_utilization=0.25,
        rps_fractional=2.5,
        eps=0.5,
        application_utilization=1.5,
        utilization={"slots": 0.75},
        named_metrics={"queue": 3},
    )
    assert report.SerializeToString(deterministic=True).hex() == OFFICIAL_REPORT
    request = OrcaLoadReportRequest.FromString(bytes.fromhex(OFFICIAL_REQUEST))
    assert request.report_interval.ToMilliseconds() == 1500


async def test_reports_follow_the_load(tmp_path):
    async with operated(tmp_path, metrics=REPORTS) as server:
        reports = watch(server, 0.1)
        first = await reports.read()
        assert (first.application_utilization, first.named_metrics["slots"]) == (0, SLOTS)
        calls = [server.speak("Hello there.") for _ in range(SLOTS + 1)]
        for call in calls[:SLOTS]:
            while not (await call.read()).audio:
                pass
        async with asyncio.timeout(HANG_SECONDS):
            while (report := await reports.read()).named_metrics["queued"] != 1:
                pass
            assert report.application_utilization == pytest.approx((SLOTS + 1) / SLOTS)
            assert report.utilization["slots"] == 1
            for call in calls:
                call.cancel()
            with pytest.raises(grpc.aio.AioRpcError):
                await server.stub.GetVoice(pb.GetVoiceRequest(id="nobody"))
            while (report := await reports.read()).application_utilization or report.rps_fractional < 0.5:
                pass
        assert report.eps == pytest.approx(0.1)
        reports.cancel()


async def test_each_client_has_its_interval(tmp_path):
    async with operated(tmp_path, metrics=REPORTS) as server:
        quick, slow = watch(server, 0.1), watch(server, 3600)
        await slow.read()
        for _ in range(3):
            await quick.read()
        waiting = asyncio.ensure_future(slow.read())
        await quick.read()
        assert not waiting.done()
        for call in (quick, slow):
            call.cancel()
        await asyncio.wait([waiting])


async def test_reports_end_when_the_server_drains(tmp_path):
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(operated(tmp_path, metrics=REPORTS))
        async with grpc.aio.insecure_channel(server.running.address) as server.serving:
            reports = watch(server, 3600)
            await reports.read()
            await stack.aclose()
            async with asyncio.timeout(HANG_SECONDS):
                while isinstance(await reports.read(), OrcaLoadReport):
                    pass
                assert await reports.code() is grpc.StatusCode.OK


async def test_a_server_sends_reports_only_if_it_is_set_up_so(tmp_path):
    async with operated(tmp_path) as server:
        assert await watch(server, 1).code() is grpc.StatusCode.UNIMPLEMENTED
