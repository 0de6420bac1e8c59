"""CARRY never fails a stream that INDEPENDENT speaks: an engine without room for the speech before gets less of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engines.voice_parts import voice_part
from support.servers.sessions import session

from voxcpm_grpc.errors import TooLong
from voxcpm_grpc.request import Conditioning, Sampling
from voxcpm_server.values.inputs import Continuity, Text

CARRY, INDEPENDENT = Continuity.CARRY, Continuity.INDEPENDENT


def stored(patches: int, chars: int) -> Conditioning:
    return Conditioning(prompt=voice_part(np.zeros((patches, 4, 8), np.float32), "t" * chars))


def spoken(pool: Any, sentences: list[int], continuity: Continuity, **options: Any) -> list[str]:
    """The texts of the segments, of sentences with these numbers of characters. Raises TooLong."""
    text = " ".join("X" + "x" * (chars - 2) + "." for chars in sentences)
    sent = session(pool, [Text(text)], continuity=continuity, **options)
    return [event.text for message in sent for event in message.segment_events if event.kind == 1]


def latents_of(request: Any) -> int:
    return 0 if request.conditioning.prompt is None else request.conditioning.prompt.steps


def test_the_oldest_segments_are_left_out_first(fake):
    """Each sentence needs 200 positions, and 200 more when it is carried."""
    pool = fake(max_positions=900)
    assert len(spoken(pool, [100] * 6, CARRY, voice=stored(50, 50))) == 6
    fitting = [request for request in pool.requests if latents_of(request) * 2 + 2 * len(request.text) <= 900]
    assert [latents_of(request) for request in fitting][:3] == [50, 150, 251]
    assert all(latents_of(request) >= 150 for request in fitting[1:]), "some speech is carried all the time"


def test_a_text_that_does_not_fit_alone_is_refused_with_its_own_figures(fake):
    pool = fake(max_positions=500)
    with pytest.raises(TooLong, match="600 positions and the engine has 500"):
        spoken(pool, [100, 100, 300], CARRY)
    with pytest.raises(TooLong, match="650 positions and the engine has 500"):
        spoken(fake(max_positions=500), [100, 100, 275], CARRY, voice=stored(50, 50))


def test_a_voice_that_the_model_chose_gives_way_to_the_text(fake):
    pool = fake(max_positions=500)
    assert len(spoken(pool, [100, 240, 20], INDEPENDENT)) == 3
    assert len(spoken(pool, [100, 249, 20], CARRY)) == 3


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sentences=st.lists(st.integers(2, 300), min_size=1, max_size=8),
    limit=st.integers(100, 1000),
    patches=st.integers(0, 200),
    chars=st.integers(1, 100),
    max_steps=st.none() | st.integers(1, 50),
)
def test_what_is_accepted_as_independent_is_accepted_under_carry(fake, sentences, limit, patches, chars, max_steps):
    options = {
        "voice": stored(patches, chars) if patches else Conditioning(),
        "sampling": Sampling(max_steps=max_steps, min_steps=0),
    }
    try:
        expected = spoken(fake(max_positions=limit), sentences, INDEPENDENT, **options)
    except TooLong:
        with pytest.raises(TooLong):
            spoken(fake(max_positions=limit), sentences, CARRY, **options)
        return
    assert spoken(fake(max_positions=limit), sentences, CARRY, **options) == expected
