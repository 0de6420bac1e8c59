"""The duration of a step that heartbeats report."""

from __future__ import annotations

import pytest

from voxcpm_grpc.ipc.messages import HEARTBEAT_SECONDS
from voxcpm_grpc.worker import heartbeat
from voxcpm_grpc.worker.heartbeat import StepTimer


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(heartbeat, "monotonic", clock)
    return clock


def heartbeats(timer: StepTimer, clock: Clock, *pauses: float) -> list[float]:
    """The duration of the step in the heartbeat after each pause."""
    durations = []
    for pause in pauses:
        clock.now += pause
        durations.append(timer.heartbeat().busy_seconds)
    return durations


def test_the_duration_grows_until_the_step_ends(clock):
    timer = StepTimer()
    assert heartbeats(timer, clock, 0.25, 0.25) == [0.0, 0.0]
    with timer:
        assert heartbeats(timer, clock, 0.125, 0.25, 0.25) == [0.125, 0.375, 0.625]
    with timer:
        assert heartbeats(timer, clock, 0.25) == [0.25]
    assert heartbeats(timer, clock, 0.25) == [0.0]


def test_time_in_which_the_whole_process_was_paused_is_not_part_of_a_step(clock):
    """A container may be paused in the middle of a step."""
    timer = StepTimer()
    with timer:
        assert heartbeats(timer, clock, 0.25, 0.25) == [0.25, 0.5]
        [after] = heartbeats(timer, clock, 3600.0)
        assert after <= 0.5 + 2 * HEARTBEAT_SECONDS
    with timer:
        [next_step] = heartbeats(timer, clock, 3600.0)
        assert next_step <= 2 * HEARTBEAT_SECONDS
