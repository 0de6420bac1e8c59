"""The page of the soak."""

from __future__ import annotations

import math

import pytest

from benchmarks.soak.deaths import Death, Listened, Run, table_of
from benchmarks.soak.page import growth


def samples(*points: tuple[int, float]) -> list:
    """Samples of these numbers of calls and MiB."""
    return [
        {"seconds": 0.0, "calls": calls, "mib": {"front": mib}, "descriptors": 0, "threads": 0, "voices": 0}
        for calls, mib in points
    ]


def test_growth_is_the_slope_of_the_second_half():
    assert growth(samples((0, 9.0), (10, 90.0), (20, 100.0), (30, 102.0), (40, 104.0)), "front") == pytest.approx(200.0)


def test_a_second_half_without_a_call_has_no_growth():
    """On a host that is busy enough, no call ends between two samples."""
    assert math.isnan(growth(samples((0, 9.0), (10, 90.0), (20, 100.0), (20, 102.0)), "front"))


def run_of(*streams: Listened, deaths: tuple[Death, ...] = ()) -> Run:
    return Run(streams=[*streams], deaths=[*deaths])


def test_a_late_stream_counts_as_one_that_held_enough_only_if_it_held_more_than_the_longest_outage():
    went_on = Listened(1.0, first_audio=0.1, outage=2.0, continuations=1)
    table = table_of(run_of(went_on, *(Listened(1.0, first_audio=0.1, late=0.5, held=held) for held in (1.0, 3.0))))
    assert (table["continued"], table["late"], table["late_with_enough_audio"]) == (1, 2, 1)
    assert table["longest_outage_of_continued"] == 2.0


def test_first_audio_around_a_death_is_that_of_the_streams_that_began_after_it():
    streams = [Listened(began, first_audio=began / 100) for began in (10.0, 21.0, 25.0, 40.0)]
    table = table_of(run_of(*streams, deaths=(Death(20.0, "engine", "kill"),)))
    assert table["first_audio_around_ms"]["p99"] == pytest.approx(250.0)
    assert table["first_audio_ms"]["p99"] == pytest.approx(400.0)
