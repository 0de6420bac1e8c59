"""Durations in messages."""

from __future__ import annotations

import pytest

from voxcpm_grpc.text.durations import duration_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (86400.0, "86400 s"),
        (90.0, "90 s"),
        (12.345, "12.3 s"),
        (0.25, "0.25 s"),
        (0.05, "50 ms"),
        (0.00149, "1.49 ms"),
        (2e-05, "20 µs"),
        (1e-9, "1 ns"),
        (0.0, "0 s"),
        (-1.0, "-1 s"),
        (-1e-9, "-1 ns"),
    ],
)
def test_a_duration_has_a_unit_in_which_it_is_not_zero(seconds, text):
    assert duration_text(seconds) == text
