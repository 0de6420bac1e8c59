"""Greedy speech is that of the official package, through the engine."""

from __future__ import annotations

from functools import partial
from unittest import mock

import numpy as np
import pytest
from support.engines.qwen3 import CASES, asked, codes_of, engine, golden, shared
from support.engines.tiny import at_rest, finished, run

from voxcpm_grpc.events import FinishReason


@pytest.mark.parametrize(("variant", "name"), CASES)
def test_greedy_codes_are_official(variant, name):
    eng = engine(variant)
    request, streams = asked(variant, name)
    plan = partial(shared(variant).prompt_layout, streams=streams)
    with mock.patch.object(type(eng.model), "plan", lambda _, asked: plan(asked)):
        eng.add(request)
    outcome = run(eng)[name]
    wanted = golden(variant)[f"{name}.codes"]
    codes = codes_of(outcome)
    assert np.array_equal(codes, wanted)
    assert len(outcome.audio) == len(codes) and outcome.waveform.shape == (1920 * len(codes),)
    ended = finished(outcome).reason
    assert ended is (FinishReason.MAX_STEPS if len(codes) == 40 else FinishReason.STOP)
    assert at_rest(eng)
