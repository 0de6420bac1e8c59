"""The digest by which two commits are compared."""

import numpy as np
from support.engines import engine, mixed_requests, run

from tools.engine_digest import counted_time, outcomes_digest


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
