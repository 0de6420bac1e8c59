"""The first seconds of each stream come before the later seconds of another, by the clocks of their readers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.doubles.paced_engine import CPU, GPU, Cost, PacedEngine, Reader
from support.engines.schedulers import STEP_SECONDS

from voxcpm_grpc.engine.scheduling.queues import SWAP_MARGIN

SLOTS = 8
LONG = 250  # steps, 40 s of audio


def calls(count: int, *, first: float, every: float) -> list[Reader]:
    """Short streams that arrive one after the other, and whose listeners play the audio as it comes."""
    return [Reader(f"call {number}", first + every * number, 25) for number in range(count)]


def run(readers: list[Reader], *, cost: Cost = CPU, slots: int = SLOTS) -> PacedEngine:
    engine = PacedEngine(cost, slots)
    engine.run(readers)
    return engine


@pytest.mark.parametrize("others", [SLOTS, SLOTS + 4])
@pytest.mark.parametrize("pace", [0.0, 0.5])
def test_calls_start_at_once_beside_readers_that_stall_or_read_slowly(pace, others):
    slow = [Reader(f"slow {number}", 0.0, LONG, pace) for number in range(others)]
    new = calls(10, first=8.0, every=2.0)
    run([*slow, *new])
    assert max(call.wait for call in new) < 0.6
    assert max(call.gaps for call in new) < 0.05
    assert max(reader.gaps for reader in slow[:SLOTS]) < 0.05, "a slow reader never waits for audio"


def test_the_first_calls_wait_only_until_a_slow_reader_has_some_seconds():
    slow = [Reader(f"stalled {number}", 0.0, LONG, 0.0) for number in range(SLOTS)]
    new = calls(3, first=0.5, every=0.0)
    run([*slow, *new])
    assert max(call.wait for call in new) < 3.5


def test_calls_start_at_once_beside_listeners_who_have_some_seconds_left():
    listeners = [Reader(f"listener {number}", 0.0, LONG) for number in range(SLOTS)]
    new = calls(3, first=16.0, every=6.0)
    run([*listeners, *new])
    assert max(call.wait for call in new) < 0.3
    assert max(reader.gaps for reader in [*listeners, *new]) < 0.2


def test_listeners_keep_their_slots_if_the_engine_cannot_make_the_audio_of_more():
    """Nine streams are as many as it makes in time."""
    listeners = [Reader(f"listener {number}", 0.3 * number, LONG) for number in range(SLOTS + 4)]
    run(listeners)
    assert max(reader.gaps for reader in listeners) < 0.3
    assert sum(reader.wait < 6.0 for reader in listeners) == SLOTS + 1


def test_a_segment_whose_stream_has_audio_left_waits_for_new_streams():
    carried = Reader("carried", 0.1, 10, lead_seconds=60.0)
    dry = Reader("dry", 0.2, 10, lead_seconds=0.2)
    new = Reader("new", 0.0, 10)
    readers = [Reader("running", 0.0, 30), carried, dry, new]
    run(readers, slots=1, cost=Cost(0.16, 0.0, 0.0))
    names = [reader.name for reader in sorted(readers, key=lambda reader: reader.times[0])]
    assert names == ["running", "dry", "new", "carried"]


def test_a_stream_that_runs_dry_has_rounds_without_those_that_are_ahead():
    """Rounds of all streams take longer than their audio, so every listener would have gaps."""
    slow_host = Cost(0.03, 0.024, 0.0008)
    slow = [Reader(f"slow {number}", 0.0, LONG, 0.2) for number in range(SLOTS - 1)]
    new = calls(4, first=15.0, every=6.0)
    engine = run([*slow, *new], cost=slow_host)
    assert max(call.gaps for call in new) < 0.05
    assert any(0 < len(work.steps) < ready for work, ready in engine.rounds)
    assert engine.scheduler.swaps == 0


def test_nobody_skips_a_round_or_loses_a_slot_while_slots_are_free_and_rounds_are_short():
    readers = [Reader(f"listener {number}", 0.01 * number, 60, (math.inf, 0.0)[number % 2]) for number in range(100)]
    engine = run(readers, cost=GPU, slots=128)
    assert engine.scheduler.swaps == 0
    loaded = [(work, ready) for work, ready in engine.rounds if ready > 64]
    assert loaded and all(len(work.steps) >= ready for work, ready in loaded)


def test_batch_streams_do_not_take_each_others_slots():
    readers = [Reader(f"book {number}", 0.0, 60, batch=True) for number in range(4)]
    engine = run(readers, slots=1)
    assert engine.scheduler.swaps == 0


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 20.0),
            st.integers(1, 120),
            st.sampled_from([0.3, 0.9, 1.0, math.inf]),
            st.sampled_from([0.0, 0.0, 3.0]),
            st.booleans(),
        ),
        min_size=1,
        max_size=14,
    ),
    st.integers(1, 4),
)
def test_every_stream_gets_all_of_its_audio_and_slots_change_hands_seldom(streams, slots):
    readers = [
        Reader(str(number), arrives, steps, pace, lead, batch and number % 3 == 0)
        for number, (arrives, steps, pace, lead, batch) in enumerate(streams)
    ]
    engine = run(readers, slots=slots)
    assert all(len(reader.times) == reader.steps for reader in readers)
    interactive = sum(not reader.batch for reader in readers)
    audio = sum(reader.steps for reader in readers) * STEP_SECONDS
    assert engine.scheduler.swaps <= 2 * interactive + audio / SWAP_MARGIN
