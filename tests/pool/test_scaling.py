"""The number of engines that the scaler wants, for series of loads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxcpm_grpc.pool.ray.scaler import Bounds, Load, Scaler

BOUNDS = Bounds(min_engines=1, max_engines=4, grow_seconds=5, shrink_seconds=60)
IDLE = Load(engines=1, starting=0, streams=0, waiting=0, slots=10)
QUEUED = replace(IDLE, streams=13, waiting=3)


def wanted(scaler: Scaler, load: Load, start: float, seconds: float) -> list[int]:
    """The wanted engines in each second of a period, its end included, with the same load."""
    return [scaler.wanted(load, start + second) for second in range(int(seconds) + 1)]


def test_a_lasting_queue_adds_an_engine():
    assert wanted(Scaler(BOUNDS), QUEUED, 0, 6) == [1, 1, 1, 1, 1, 2, 2]


def test_the_wait_starts_again_after_the_queue_was_empty():
    scaler = Scaler(BOUNDS)
    assert set(wanted(scaler, QUEUED, 0, 4)) == {1}
    assert scaler.wanted(IDLE, 4.5) == 1
    assert wanted(scaler, QUEUED, 5, 5) == [1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize(("waiting", "engines"), [(1, 2), (10, 2), (11, 3), (30, 4), (500, 4)])
def test_a_long_queue_adds_as_many_engines_as_it_fills(waiting, engines):
    scaler = Scaler(BOUNDS)
    assert wanted(scaler, replace(IDLE, streams=10 + waiting, waiting=waiting), 0, 5)[-1] == engines


def test_an_engine_that_starts_counts_as_capacity():
    scaler = Scaler(BOUNDS)
    assert wanted(scaler, QUEUED, 0, 5)[-1] == 2
    starting = replace(QUEUED, engines=2, starting=1)
    assert set(wanted(scaler, starting, 6, 100)) == {2}, "the same burst adds engines once"
    assert wanted(scaler, replace(starting, streams=35, waiting=25), 107, 5)[-1] == 4


def test_idle_engines_are_removed_after_a_while_down_to_the_minimum():
    scaler = Scaler(replace(BOUNDS, min_engines=2))
    idle = replace(IDLE, engines=4)
    assert set(wanted(scaler, idle, 0, 59)) == {4}, "the load before is unknown"
    assert scaler.wanted(idle, 60) == 2


def test_engines_for_the_busiest_moment_of_the_window_are_kept():
    scaler = Scaler(BOUNDS)
    four = replace(IDLE, engines=4)
    wanted(scaler, four, 0, 100)
    assert scaler.wanted(replace(four, streams=20), 101) == 3, "two would have no free slot"
    assert set(wanted(scaler, four, 102, 59)) == {3}
    assert scaler.wanted(four, 162) == 1


def test_a_removed_engine_is_not_added_again_under_the_same_load():
    scaler = Scaler(BOUNDS)
    steady = replace(IDLE, engines=4, streams=16)
    assert wanted(scaler, steady, 0, 60)[-1] == 2
    assert set(wanted(scaler, replace(steady, engines=2), 61, 200)) == {2}


def test_an_engine_that_never_becomes_ready_is_removed_when_it_is_not_needed():
    scaler = Scaler(BOUNDS)
    starting = replace(QUEUED, engines=2, starting=1)
    assert set(wanted(scaler, starting, 0, 100)) == {2}
    assert wanted(scaler, replace(starting, streams=5, waiting=0), 101, 60)[-1] == 1


def test_a_pool_below_the_minimum_grows_at_once():
    assert Scaler(replace(BOUNDS, min_engines=2)).wanted(IDLE, 0) == 2
