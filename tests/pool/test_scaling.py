"""A day in the life of a pool, told in fractions of a second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxcpm_grpc.pool.ray.scaler import Bounds, Load, Scaler

BOUNDS = Bounds(min_engines=1, max_engines=4, grow_seconds=5, shrink_seconds=60)
IDLE = Load(engines=1, starting=0, streams=0, waiting=0, slots=10)
QUEUED = replace(IDLE, streams=13, waiting=3)


def asked(scaler: Scaler, load: Load, start: float, seconds: float) -> list[int]:
    """What it wants in each second of that time, its end included, while the load stays."""
    return [scaler.wanted(load, start + second) for second in range(int(seconds) + 1)]


def test_a_queue_that_lasts_calls_for_an_engine():
    assert asked(Scaler(BOUNDS), QUEUED, 0, 6) == [1, 1, 1, 1, 1, 2, 2]


def test_a_queue_that_was_empty_for_a_moment_starts_to_wait_anew():
    scaler = Scaler(BOUNDS)
    assert set(asked(scaler, QUEUED, 0, 4)) == {1}
    assert scaler.wanted(IDLE, 4.5) == 1
    assert asked(scaler, QUEUED, 5, 5) == [1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize(("waiting", "wanted"), [(1, 2), (10, 2), (11, 3), (30, 4), (500, 4)])
def test_a_long_queue_calls_for_as_many_as_it_would_fill(waiting, wanted):
    scaler = Scaler(BOUNDS)
    assert asked(scaler, replace(IDLE, streams=10 + waiting, waiting=waiting), 0, 5)[-1] == wanted


def test_an_engine_that_starts_is_counted_on():
    scaler = Scaler(BOUNDS)
    assert asked(scaler, QUEUED, 0, 5)[-1] == 2
    coming = replace(QUEUED, engines=2, starting=1)
    assert set(asked(scaler, coming, 6, 100)) == {2}, "the same burst is not answered twice"
    assert asked(scaler, replace(coming, streams=35, waiting=25), 107, 5)[-1] == 4


def test_what_is_idle_goes_after_a_while_and_never_below_the_least():
    scaler = Scaler(replace(BOUNDS, min_engines=2))
    idle = replace(IDLE, engines=4)
    assert set(asked(scaler, idle, 0, 59)) == {4}, "nothing is known of the time before"
    assert scaler.wanted(idle, 60) == 2


def test_the_busiest_moment_of_the_window_is_kept_room_for():
    scaler = Scaler(BOUNDS)
    four = replace(IDLE, engines=4)
    asked(scaler, four, 0, 100)
    assert scaler.wanted(replace(four, streams=20), 101) == 3, "two would be full to the brim"
    assert set(asked(scaler, four, 102, 59)) == {3}
    assert scaler.wanted(four, 162) == 1


def test_what_was_given_back_is_not_asked_for_again():
    scaler = Scaler(BOUNDS)
    steady = replace(IDLE, engines=4, streams=16)
    assert asked(scaler, steady, 0, 60)[-1] == 2
    assert set(asked(scaler, replace(steady, engines=2), 61, 200)) == {2}


def test_an_engine_that_does_not_come_is_waited_for_only_while_it_is_needed():
    scaler = Scaler(BOUNDS)
    coming = replace(QUEUED, engines=2, starting=1)
    assert set(asked(scaler, coming, 0, 100)) == {2}
    assert asked(scaler, replace(coming, streams=5, waiting=0), 101, 60)[-1] == 1


def test_a_pool_below_the_least_is_brought_up_at_once():
    assert Scaler(replace(BOUNDS, min_engines=2)).wanted(IDLE, 0) == 2
