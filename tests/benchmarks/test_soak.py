"""The page of the soak."""

from __future__ import annotations

import math

import pytest

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
