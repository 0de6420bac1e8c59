"""The digest by which two commits are compared."""

import numpy as np
from support.engines.tiny import engine, mixed_requests, run

from tools.engine_digest import counted_time, other_lines, outcomes_digest


def outcomes():
    with counted_time():
        eng = engine()
        for request in mixed_requests(2):
            eng.add(request)
        return run(eng)


def test_equal_runs_have_equal_digests_and_one_changed_bit_has_another():
    audio, speech = outcomes_digest(outcomes())
    again = outcomes()
    assert outcomes_digest(again) == (audio, speech)
    again["r1"].audio[-1][-1] = np.nextafter(again["r1"].audio[-1][-1], 2)
    changed, unchanged = outcomes_digest(again)
    assert changed != audio and unchanged == speech


def test_a_comparison_names_the_runs_that_are_others_new_or_gone():
    before = ["one                 aa bb", "two together        cc", "three               dd"]
    assert other_lines(before, before) == []
    now = ["one                 aa bb", "two together        ce", "four                dd"]
    assert other_lines(before, now) == ["two together", "three", "four"]
