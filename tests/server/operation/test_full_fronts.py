"""A front whose event loop uses a whole processor says so, with the remedy."""

from __future__ import annotations

import logging
import time
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from support.doubles.fake_engine import MakeFake
from support.doubles.pools import Launcher, pool_with
from support.servers.ports import free_port
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.settings.operation import AdminSettings, MetricsSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_grpc.v1 import admin_pb2, admin_pb2_grpc
from voxcpm_server.app import running_server
from voxcpm_server.operation import loop_load
from voxcpm_server.operation.loop_load import LoopLoad, Usage


class Clocks:
    """The clock of the wall, and that of a thread that uses a share of it."""

    def __init__(self) -> None:
        self.now = self.ran = self.waited = 0.0
        usage = lambda: Usage(self.ran, self.waited)  # noqa: E731
        self.load = LoopLoad("start more with --fronts", clock=lambda: self.now, usage=usage)
        self.load.tick(0.0)

    def spend(self, seconds: int, share: float, waits: float = 0.0, lag: float = 0.0) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.ran += share
            self.waited += waits
            self.load.tick(lag)


@pytest.fixture
def clocks(caplog: pytest.LogCaptureFixture) -> Iterator[Clocks]:
    caplog.set_level(logging.INFO)
    yield Clocks()


def lines(caplog: pytest.LogCaptureFixture) -> int:
    return caplog.text.count("this front is full: start more with --fronts busy=")


def test_a_full_front_says_so_once_a_minute(clocks, caplog):
    clocks.spend(9, 1.0)
    assert lines(caplog) == 0, "a short peak is not worth a line"
    clocks.spend(51, 1.0)
    assert clocks.load.full and clocks.load.busy == pytest.approx(1.0) and lines(caplog) == 1
    clocks.spend(60, 0.95)
    assert lines(caplog) == 2
    clocks.spend(120, 0.5)
    assert not clocks.load.full and clocks.load.busy == pytest.approx(0.5) and lines(caplog) <= 3


def test_delays_alone_do_not_make_a_front_full(clocks, caplog):
    clocks.spend(60, 0.3, lag=0.4)
    assert not clocks.load.full and "is full" not in caplog.text
    assert clocks.load.lag == 0.4


def test_a_front_that_gets_no_processor_is_not_told_to_start_more_fronts(clocks, caplog):
    clocks.spend(60, 0.3, waits=0.65)
    assert clocks.load.full and not lines(caplog)
    assert "this front is full: other processes take the processors of its event loop" in caplog.text


def test_the_load_of_a_thread_that_always_has_work_is_whole_on_a_busy_host():
    load = LoopLoad("start more with --fronts")
    load.tick(0.0)
    ends = time.monotonic() + 0.3
    while time.monotonic() < ends:
        pass
    load.tick(0.0)
    assert load.busy > 0.85 or not loop_load.SCHEDULER.exists()


def gauges(address: str) -> dict[str, float]:
    """The values of a metrics page that have no labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=HANG_SECONDS) as page:
        words = [line.split() for line in page.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (one for one in words if len(one) == 2)}


@pytest.mark.parametrize("full", [True, False])
async def test_log_metrics_and_statistics_agree(tmp_path, caplog, monkeypatch, full):
    monkeypatch.setattr(loop_load, "FULL", 0.0 if full else 2.0)
    monkeypatch.setattr(loop_load, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(loop_load, "TICKS", 2)
    caplog.set_level(logging.INFO)
    settings = Settings(
        listen="127.0.0.1:0",
        voices=VoiceSettings(url=str(tmp_path)),
        metrics=MetricsSettings(listen=f"127.0.0.1:{free_port()}"),
        admin=AdminSettings(listen=f"127.0.0.1:{free_port()}"),
    )
    pool = pool_with(Launcher([MakeFake()], "engine 0"))
    async with (
        running_server(settings, pool=pool) as server,
        grpc.aio.insecure_channel(settings.admin.listen or "") as channel,
    ):
        await until(lambda: server.rpc.load.busy > 0.0)
        await until(lambda: ("this front is full" in caplog.text) or not full)
        stub = admin_pb2_grpc.VoxCPMAdminServiceStub(channel)
        front = (await stub.GetStats(admin_pb2.GetStatsRequest())).stats.front
        assert front.loop_busy > 0.0 and front.HasField("loop_lag")
        assert bool(front.full_remedy) is full
        samples = gauges(settings.metrics.listen or "")
        assert samples["voxcpm_front_full"] == full
        assert 0.0 < samples["voxcpm_front_loop_busy"] <= 1.0
        assert samples["voxcpm_front_loop_lag_seconds"] >= 0.0
    assert caplog.text.count("this front is full") == full
