"""The timeouts of the supervisor: silence of an engine and long steps, in time that the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

import pytest
from support.doubles.fake_engine import INFO
from support.doubles.made_up_time import pass_time, run

from voxcpm_grpc.ipc.messages import HEARTBEAT_SECONDS, Command, Heartbeat, Report
from voxcpm_grpc.pool.engines.supervisor import Supervisor
from voxcpm_grpc.pool.estimates import Restarts
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.engine import SupervisionSettings

MAX_DELAY = 2.0  # seconds until a lost engine is noticed
DEFAULTS = SupervisionSettings()


@dataclass
class Engine:
    """The handle of an engine that sends heartbeats until `silent_from`, and makes one long step."""

    name: str = "engine"
    device: str = "cpu"
    slowest_step: float = 0.0
    silent_from: float = float("inf")
    step_from: float = float("inf")
    step_to: float = float("inf")
    start_seconds: float = 0.0

    async def start(self) -> ModelInfo:
        await asyncio.sleep(self.start_seconds)
        return replace(INFO, device=self.device)

    def post(self, command: Command) -> None: ...

    async def reports(self) -> AsyncGenerator[list[Report]]:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            busy = loop.time() - self.step_from if self.step_from < loop.time() <= self.step_to else 0.0
            if loop.time() < self.silent_from:
                yield [Heartbeat(busy, self.slowest_step)]

    async def close(self, *, force: bool = False) -> None: ...


def losses(engine: Engine, settings: SupervisionSettings = DEFAULTS, blocked_seconds: float = 0.0) -> list[float]:
    """The times at which an engine is lost within 30 s. The engines after it are healthy.

    The event loop of the front is blocked once for `blocked_seconds`.
    """
    engines, times = iter([engine]), []

    async def supervise() -> None:
        loop = asyncio.get_running_loop()
        supervisor = Supervisor(lambda: next(engines, Engine()), settings, on_lost=lambda _: times.append(loop.time()))
        await supervisor.start()
        await asyncio.sleep(10.1)
        pass_time(blocked_seconds)
        await asyncio.sleep(20.0)
        assert supervisor.restarts.count == len(times)
        await supervisor.close()

    run(supervise())
    return times


def test_a_silent_engine_is_lost_in_time():
    [at] = losses(Engine(silent_from=10.0))
    assert DEFAULTS.silence_seconds <= at - 10.0 + HEARTBEAT_SECONDS
    assert at - 10.0 <= MAX_DELAY


@pytest.mark.parametrize("engine", [Engine(slowest_step=0.07), Engine(slowest_step=0.3, device="cuda:0")])
def test_a_step_without_end_is_noticed_in_time(engine):
    [at] = losses(replace(engine, step_from=10.0))
    assert at - 10.0 <= MAX_DELAY


@pytest.mark.parametrize("background", [False, True], ids=["awaited", "in the background"])
def test_a_restart_is_counted_once_and_expected_to_take_as_long_as_the_start_before(background):
    engines, left = iter([Engine(start_seconds=7.0, silent_from=10.0)]), []

    async def supervise() -> None:
        supervisor = Supervisor(
            lambda: next(engines, Engine(start_seconds=3.0)),
            DEFAULTS,
            on_lost=lambda _: left.append(supervisor.restarts.seconds_left),
        )
        if background:
            supervisor.start_in_background()
        else:
            await supervisor.start()
        loop = asyncio.get_running_loop()
        await asyncio.sleep(9.0 - loop.time())
        assert supervisor.restarts.count == 0
        await asyncio.sleep(15.0)
        assert supervisor.restarts.count == 1
        assert supervisor.restarts.start_seconds == pytest.approx(3.0)
        await supervisor.close()

    run(supervise())
    assert left == [pytest.approx(7.25, abs=1.0)]


def test_the_first_start_may_take_longer_than_is_expected_of_the_next_one():
    engines, left = (
        iter([Engine(start_seconds=33.0, silent_from=40.0), Engine(start_seconds=21.0, silent_from=80.0)]),
        [],
    )

    async def supervise() -> None:
        supervisor = Supervisor(
            lambda: next(engines, Engine()), DEFAULTS, on_lost=lambda _: left.append(supervisor.restarts.seconds_left)
        )
        await supervisor.start()
        await asyncio.sleep(60.0)
        await supervisor.close()

    run(supervise())
    assert left == [pytest.approx(15.25, abs=1.0), pytest.approx(21.25, abs=1.0)]


def test_a_restart_that_takes_longer_than_expected_is_expected_to_take_a_part_of_its_time():
    async def expect() -> list[float]:
        restarts, left = Restarts(), []
        restarts.expect(10.0)
        for _ in range(4):
            left.append(restarts.seconds_left)
            await asyncio.sleep(5.0)
        return left

    assert run(expect()) == pytest.approx([10.0, 5.0, 1.0, 1.5])


LONG = Engine(step_from=10.0, step_to=12.5)


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        (replace(LONG, slowest_step=0.2), DEFAULTS),
        (replace(LONG, slowest_step=0.6, device="cuda:0"), DEFAULTS),
        (LONG, SupervisionSettings(step_seconds=2.5)),
    ],
    ids=["a warm-up with slow steps", "a GPU with very slow steps", "a longer limit in the settings"],
)
def test_a_long_step_is_allowed_on_a_slow_engine(engine, settings):
    assert losses(engine, settings) == []


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        (replace(LONG, slowest_step=0.1), DEFAULTS),
        (replace(LONG, slowest_step=0.4, device="cuda:0"), DEFAULTS),
        (replace(LONG, slowest_step=0.6), SupervisionSettings(step_seconds=2.0)),
    ],
)
def test_a_step_over_the_limit_of_its_engine_is_a_loss(engine, settings):
    assert len(losses(engine, settings)) == 1


def test_a_blocked_front_does_not_lose_a_healthy_engine():
    assert losses(Engine(), blocked_seconds=5.0) == []


def test_an_engine_that_falls_silent_while_the_front_is_blocked_is_lost_afterwards():
    [at] = losses(Engine(silent_from=10.0), blocked_seconds=5.0)
    assert at - 10.0 - 5.0 <= MAX_DELAY
