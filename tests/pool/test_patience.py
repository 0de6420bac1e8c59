"""How long an engine may be silent or at one step before it counts as lost, in time that is made up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

import pytest
from support.fake_engine import INFO
from support.made_up_time import pass_time, run

from voxcpm_grpc.ipc.messages import BEAT_SECONDS, Beat, Command, Report
from voxcpm_grpc.pool.handle import Handle
from voxcpm_grpc.pool.supervisor import Supervisor
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.schema import SupervisionSettings
from voxcpm_grpc.worker import dispatcher
from voxcpm_grpc.worker.dispatcher import Heartbeat

NOTICED = 2.0  # seconds, at most
DEFAULTS = SupervisionSettings()


@dataclass
class Engine:
    """A handle of an engine that gives signs of life, and makes one long step, at the times that a test says."""

    name: str = "engine"
    device: str = "cpu"
    slowest_step: float = 0.0
    silent_from: float = float("inf")
    step_from: float = float("inf")
    step_to: float = float("inf")

    async def start(self) -> ModelInfo:
        return replace(INFO, device=self.device)

    def post(self, command: Command) -> None: ...

    async def reports(self) -> AsyncGenerator[list[Report]]:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            busy = loop.time() - self.step_from if self.step_from < loop.time() <= self.step_to else 0.0
            if loop.time() < self.silent_from:
                yield [Beat(busy, self.slowest_step)]

    async def close(self, *, force: bool = False) -> None: ...


@dataclass
class Losses:
    """A tenant that notes when it lost an engine."""

    at: list[float] = field(default_factory=list)

    def came(self, handle: Handle, info: ModelInfo) -> None: ...

    def said(self, reports: list[Report]) -> None: ...

    def went(self, why: str) -> None:
        self.at.append(asyncio.get_running_loop().time())

    def gave_up(self, why: str) -> None: ...


def losses(engine: Engine, settings: SupervisionSettings = DEFAULTS, held_up: float = 0.0) -> list[float]:
    """When an engine was lost in half a minute; its successors are healthy. The front is held up once, so long."""
    engines = iter([engine])
    tenant = Losses()

    async def supervise() -> None:
        supervisor = Supervisor(lambda: next(engines, Engine()), tenant, settings)
        await supervisor.start()
        await asyncio.sleep(10.1)
        pass_time(held_up)
        await asyncio.sleep(20.0)
        assert supervisor.restarts == len(tenant.at)
        await supervisor.close()

    run(supervise())
    return tenant.at


def test_an_engine_that_falls_silent_is_lost_in_time():
    [at] = losses(Engine(silent_from=10.0))
    assert DEFAULTS.silence_seconds <= at - 10.0 + BEAT_SECONDS
    assert at - 10.0 <= NOTICED


@pytest.mark.parametrize("engine", [Engine(slowest_step=0.07), Engine(slowest_step=0.3, device="cuda:0")])
def test_a_step_without_end_is_noticed_in_time(engine):
    [at] = losses(replace(engine, step_from=10.0))
    assert at - 10.0 <= NOTICED


LONG = Engine(step_from=10.0, step_to=12.5)


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        (replace(LONG, slowest_step=0.2), DEFAULTS),
        (replace(LONG, slowest_step=0.6, device="cuda:0"), DEFAULTS),
        (LONG, SupervisionSettings(step_seconds=2.5)),
    ],
    ids=["an engine that was slow to warm up", "a GPU that was very slow", "as the settings say"],
)
def test_a_long_step_is_no_fault_where_steps_are_long(engine, settings):
    assert losses(engine, settings) == []


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        (replace(LONG, slowest_step=0.1), DEFAULTS),
        (replace(LONG, slowest_step=0.4, device="cuda:0"), DEFAULTS),
        (replace(LONG, slowest_step=0.6), SupervisionSettings(step_seconds=2.0)),
    ],
)
def test_a_step_is_too_long_for_its_engine(engine, settings):
    assert len(losses(engine, settings)) == 1


def test_a_front_that_is_held_up_itself_blames_nobody():
    assert losses(Engine(), held_up=5.0) == []


def test_an_engine_that_falls_silent_while_the_front_is_held_up_is_lost_afterwards():
    [at] = losses(Engine(silent_from=10.0), held_up=5.0)
    assert at - 10.0 - 5.0 <= NOTICED


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """The engine's, which a test moves."""
    clock = Clock()
    monkeypatch.setattr(dispatcher, "monotonic", clock)
    return clock


def beats(pulse: Heartbeat, clock: Clock, *pauses: float) -> list[float]:
    """How long the present step has lasted, as is told after each pause."""
    told = []
    for pause in pauses:
        clock.now += pause
        told.append(pulse.beat().busy_seconds)
    return told


def test_a_step_lasts_until_it_ends(clock):
    pulse = Heartbeat()
    assert beats(pulse, clock, 0.25, 0.25) == [0.0, 0.0]
    with pulse:
        assert beats(pulse, clock, 0.125, 0.25, 0.25) == [0.125, 0.375, 0.625]
    with pulse:
        assert beats(pulse, clock, 0.25) == [0.25]
    assert beats(pulse, clock, 0.25) == [0.0]


def test_time_in_which_the_whole_process_stood_still_is_no_part_of_a_step(clock):
    """As when a container is paused in the middle of a step."""
    pulse = Heartbeat()
    with pulse:
        assert beats(pulse, clock, 0.25, 0.25) == [0.25, 0.5]
        [after] = beats(pulse, clock, 3600.0)
        assert after <= 0.5 + 2 * BEAT_SECONDS
    with pulse:
        [fresh] = beats(pulse, clock, 3600.0)
        assert fresh <= 2 * BEAT_SECONDS
