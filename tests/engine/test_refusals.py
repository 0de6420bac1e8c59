"""Requests that an engine refuses."""

from dataclasses import replace

import numpy as np
import pytest
from support.engines.tiny import engine
from support.engines.voice_parts import voice_part

from voxcpm_grpc.errors import Exhausted, FailedPrecondition, InvalidRequest, TooLong
from voxcpm_grpc.request import Conditioning, Request, Sampling


def test_a_request_that_cannot_run_is_refused_with_number_and_limit():
    eng = engine(slots=1, max_queue=1)
    ask = Request(id="a", text="Hello.")
    with pytest.raises(FailedPrecondition, match="4, 6, 10"):
        eng.add(replace(ask, sampling=Sampling(inference_timesteps=7)))
    with pytest.raises(TooLong, match="2048"):
        eng.add(replace(ask, text="long " * 600))
    with pytest.raises(InvalidRequest):
        eng.add(replace(ask, text="  \n "))
    with pytest.raises(InvalidRequest):
        eng.add(replace(ask, conditioning=Conditioning(reference=voice_part(np.full((3, 4, 8), np.nan, np.float32)))))
    with pytest.raises(InvalidRequest):
        eng.add(replace(ask, conditioning=Conditioning(prompt=voice_part(np.zeros((3, 4, 9), "f4"), "x"))))
    assert not eng.busy
    eng.add(ask)
    with pytest.raises(InvalidRequest, match="in use"):
        eng.add(ask)
    eng.add(replace(ask, id="b"))
    with pytest.raises(Exhausted, match="limit is 1"):
        eng.add(replace(ask, id="c"))


def test_a_check_finds_what_could_never_run_and_queues_nothing():
    eng = engine(slots=1, max_queue=0)
    long = Conditioning(prompt=voice_part(np.zeros((3, 4, 8), np.float32), "x" * 2100))
    with pytest.raises(TooLong, match="2048"):
        eng.check(Request(id="a", text="a", conditioning=long))
    with pytest.raises(InvalidRequest):
        eng.check(Request(id="a", text=" "))
    eng.add(Request(id="a", text="Hello."))
    eng.check(Request(id="a", text="Hello."))  # neither a used id nor a full queue matters
    assert len(eng.scheduler.waiting) == 1
