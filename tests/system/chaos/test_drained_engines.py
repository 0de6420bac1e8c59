"""Admins take engines out of service and start them again, and nobody who listens notices."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import psutil
import pytest
from click.testing import CliRunner
from support.clients.grpc_types import EOF
from support.doubles.fake_engine import MakeFake
from support.servers.operated import operated
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_client.cli import main
from voxcpm_grpc.v1 import admin_pb2 as pb

STEPS = 400
SLOW = MakeFake(step_seconds=0.002)


async def listen(call: Any) -> Any:
    """The summary of a stream."""
    last = None
    async with asyncio.timeout(HANG_SECONDS):
        while (message := await call.read()) is not EOF:
            last = message
    assert last is not None
    return last.summary


async def command(*arguments: str, target: str) -> str:
    def run() -> str:
        result = CliRunner().invoke(main, ["engines", *arguments, "--target", target])
        assert result.exit_code == 0, result.output
        return result.output

    return await asyncio.to_thread(run)


async def test_an_engine_is_drained_and_started_again(tmp_path):
    async with operated(tmp_path, SLOW, engines=2) as server:
        calls = [server.speak("Hello there.", STEPS) for _ in range(4)]
        for call in calls:
            while not (await call.read()).audio:
                pass
        pid = server.launcher.pid
        async with asyncio.timeout(HANG_SECONDS):
            await server.admin.DrainEngine(pb.DrainEngineRequest(engine="engine 0"))
        await until(lambda: not psutil.pid_exists(pid))
        states = {engine.name: engine.state for engine in (await server.stats()).engines}
        assert states == {"engine 0": pb.ENGINE_STATE_DRAINED, "engine 1": pb.ENGINE_STATE_READY}
        summaries = await asyncio.gather(*map(listen, calls))
        assert [summary.generated_steps for summary in summaries] == [STEPS] * 4
        assert [summary.total_samples for summary in summaries] == [STEPS * 960] * 4
        assert sorted(summary.continuations for summary in summaries) == [0, 0, 1, 1]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await server.admin.DrainEngine(pb.DrainEngineRequest(engine="engine 1"))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        await server.admin.StartEngine(pb.StartEngineRequest(engine="engine 0"))
        found = await server.stats_when(lambda stats: stats.engines[0].state == pb.ENGINE_STATE_READY)
        assert found.engines[0].restarts == 0


async def test_the_commands_drain_start_and_list_engines(tmp_path):
    async with operated(tmp_path, SLOW, engines=2) as server:
        target = server.admin_address
        assert "out of service" in await command("drain", "engine 1", target=target)
        assert "drained" in await command("list", target=target)
        assert "starting" in await command("start", "engine 1", target=target)
        await server.stats_when(lambda stats: stats.engines[1].state == pb.ENGINE_STATE_READY)
        pid = server.launcher.pid
        assert "starts again" in await command("drain", "engine 0", "--restart", target=target)
        await server.stats_when(lambda stats: stats.engines[0].state == pb.ENGINE_STATE_READY)
        assert server.launcher.pid != pid


@pytest.mark.parametrize(
    ("name", "code"), [("", grpc.StatusCode.INVALID_ARGUMENT), ("engine 9", grpc.StatusCode.NOT_FOUND)]
)
async def test_an_unknown_engine_is_refused(tmp_path, name, code):
    async with operated(tmp_path) as server:
        for call in (
            server.admin.DrainEngine(pb.DrainEngineRequest(engine=name)),
            server.admin.StartEngine(pb.StartEngineRequest(engine=name)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is code
