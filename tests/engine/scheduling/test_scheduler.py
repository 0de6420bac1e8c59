"""The scheduler alone, with a simulated device that completes every step."""

import contextlib
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines.schedulers import PAGE, PLAYED, scheduler, sequence

from voxcpm_grpc.engine.scheduling.queues import SWAP_MARGIN
from voxcpm_grpc.engine.scheduling.scheduler import ARRIVAL_SECONDS, Scheduler
from voxcpm_grpc.engine.scheduling.sequence import Sequence
from voxcpm_grpc.errors import Exhausted, TooLong


def run(sched, rounds=10_000, each=lambda work: None):
    """Run rounds until nothing is left, and return the ids of the steps in order. Checks the invariants of a round."""
    order = []
    while sched.running or sched.waiting or sched.swapped:
        rounds -= 1
        assert rounds, "the scheduler makes no progress"
        assert sched.runnable
        work = sched.schedule(PLAYED)
        assert work
        assert sum(chunk.stop - chunk.start for chunk in work.chunks) <= sched.budget.most
        assert len(set(map(id, work.steps))) == len(work.steps)
        owned = [page for seq in sched.running for page in seq.pages]
        assert len(owned) == len(set(owned)) == sched.blocks.used
        slots = [seq.slot for seq in {*sched.running, *sched.waiting} if seq.slot is not None]
        assert len(slots) == len(set(slots))
        for seq in work.steps:
            assert seq in sched.running and seq.filled == seq.length
            assert len(seq.pages) * PAGE >= seq.filled
        each(work)
        for seq in work.steps:
            order.append(seq.id)
            seq.delivered += 1
            if seq.delivered == seq.max_steps:
                sched.remove(seq)
    assert sched.blocks.used == 0
    return order


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(8, 24),
    st.integers(1, 40),
)
def test_every_request_gets_all_its_steps_under_any_pressure(requests, slots, pages, budget):
    sched = scheduler(slots=slots, pages=pages, budget=budget, max_queue=100)
    expected = {}
    for index, (length, steps, is_batch) in enumerate(requests):
        seq = sequence(str(index), length, steps, batch=is_batch)
        try:
            sched.add(seq)
        except TooLong:
            assert length + (steps + 2) // 3 > pages * PAGE
            continue
        expected[seq.id] = min(steps, min(64, pages * PAGE) - length)
    order = run(sched)
    assert {name: order.count(name) for name in set(order)} == expected


def test_a_chunked_prefill_does_not_delay_streams_whose_audio_runs_low():
    sched = scheduler(budget=4, pages=64, max_len=128)
    first = sequence("first", 3, 20)
    sched.add(first)
    sched.schedule(0.0)
    first.plays_until = 0.0
    sched.add(sequence("long", 40, 5))
    rounds = [sched.schedule(0.16 * turn) for turn in range(1, 10)]
    assert all("first" in [seq.id for seq in work.steps] for work in rounds)
    assert [chunk.stop - chunk.start for work in rounds for chunk in work.chunks] == [4] * 9


def test_budgets_grow_with_the_square_root_of_the_waiting_positions():
    sched = scheduler(slots=80, pages=5000, budget=500, most=2500, max_queue=100, max_len=200)
    sizes = []
    for count in (1, 16, 60):
        for index in range(count):
            sched.add(sequence(f"{count}.{index}", 100, 1))
        sizes.append([])
        while any(not seq.launched for seq in [*sched.running, *sched.waiting]):
            work = sched.schedule(PLAYED)
            sizes[-1].append(sum(chunk.stop - chunk.start for chunk in work.chunks))
        for seq in list(sched.running):
            sched.remove(seq)
    assert sizes == [[100], [1536, 64], [2500, 2304, 1196]]


def test_streams_that_are_ahead_of_playback_skip_rounds_during_a_prefill():
    sched = scheduler(budget=4, pages=64, max_len=128)
    first = sequence("first", 3, 20)
    sched.add(first)
    for _ in range(4):
        sched.schedule(0.0)
    first.plays_until = 0.0  # 0.64 s of audio generated
    sched.add(sequence("long", 12, 5))
    assert [seq.id for seq in sched.schedule(0.1).steps] == []
    assert [seq.id for seq in sched.schedule(0.6).steps] == ["first"]  # 40 ms of audio left
    assert {seq.id for seq in sched.schedule(0.6).steps} == {"long"}  # 200 ms left; the prompt is complete
    assert {seq.id for seq in sched.schedule(0.6).steps} == {"first", "long"}


@pytest.mark.parametrize(
    ("running", "arriving", "beside", "skip"),
    [
        (16, 1, math.inf, True),
        (17, 1, math.inf, False),
        (17, 5, math.inf, True),
        (7, 1, 8, True),
        (9, 1, 8, False),
        (9, 3, 8, True),
        (17, 1, 30, False),
    ],
)
def test_no_stream_skips_a_round_under_load(running, arriving, beside, skip):
    """New streams join the step of all if more than half of the slots generate, unless many streams arrive.

    A model may say that so many streams are fewer.
    """
    sched = scheduler(slots=32, pages=400, budget=1000, max_queue=100, max_len=128, separate_beside=beside)
    old = [sequence(f"old {index}", 3, 20) for index in range(running)]
    for seq in old:
        sched.add(seq)
    for _ in range(4):
        sched.schedule(0.0)
    for seq in old:
        seq.plays_until = 0.0  # 0.64 s of audio generated
    fresh = [sequence(f"new {index}", 3, 20) for index in range(arriving)]
    for seq in fresh:
        sched.add(seq)
    assert set(sched.schedule(0.1).steps) == {*fresh, *(() if skip else old)}
    assert set(sched.schedule(0.1).steps) == {*fresh, *old}


def test_a_new_stream_joins_the_step_of_the_round_of_its_prefill():
    sched = scheduler()
    sched.add(sequence("a", 5, 2))
    work = sched.schedule(PLAYED)
    assert work.opened == [work.chunks[0].sequence] == work.steps
    assert work.chunks[0].starts_generation


def streaming(*, budget=16, slots=4) -> Scheduler:
    """A scheduler that has scheduled a round of the streams a and b, which arrived at 0."""
    sched = scheduler(slots=slots, pages=64, budget=budget, max_len=128)
    for name in "ab":
        sched.add(sequence(name, 3, 20))
    assert [seq.id for seq in sched.schedule(0.0).steps] == ["a", "b"]
    return sched


def test_a_prompt_joins_a_round_and_starts_in_the_next_one():
    sched = streaming()
    late = sequence("late", 5, 2)
    sched.add(late)
    joined = sched.join(2, 0.0)
    assert joined.opened == [late] == [chunk.sequence for chunk in joined.chunks] and not joined.steps
    assert joined.chunks[0].starts_generation and late.launched == 0
    work = sched.schedule(0.0)
    assert late in work.steps and not work.chunks
    assert not sched.join(3, 0.0)


def test_joined_prompts_take_what_the_round_has_left_of_its_budget():
    sched = streaming(budget=8)
    assert sched.prefilled == 6
    sched.add(sequence("late", 13, 2))
    sizes = [sum(chunk.stop - chunk.start for chunk in sched.join(2, PLAYED).chunks)]
    for _ in range(2):
        prefilled = sum(chunk.stop - chunk.start for chunk in sched.schedule(PLAYED).chunks)
        sizes += [prefilled, sum(chunk.stop - chunk.start for chunk in sched.join(2, PLAYED).chunks)]
    assert sizes == [2, 8, 0, 3, 0]


def test_joined_prompts_and_steps_together_are_no_more_rows_than_a_prefill():
    sched = streaming(budget=8)
    sched.schedule(PLAYED)
    sched.add(sequence("late", 13, 2))
    assert [(chunk.start, chunk.stop) for chunk in sched.join(5, PLAYED).chunks] == [(0, 3)]


def test_joined_prompts_take_neither_slots_nor_pages_of_others():
    sched = scheduler(slots=1, pages=4, budget=16)
    paused = sequence("paused", 9, 6, limit=1)
    sched.add(paused)
    sched.schedule(0.0)
    paused.delivered = 1
    sched.add(sequence("late", 3, 2))
    assert not sched.join(1, 0.0) and paused.slot is not None
    assert sched.schedule(0.0).swapped_out == [(paused, 0)]

    sched = scheduler(slots=2, pages=4, budget=16)
    paused = sequence("paused", 9, 6, limit=1)
    sched.add(paused)
    sched.schedule(0.0)
    sched.add(sequence("late", 5, 2))  # needs two of the pages, of which one is free
    assert not sched.join(1, 0.0) and not sched.preemptions
    assert [seq.id for seq in sched.schedule(0.0).opened] == ["late"] and sched.preemptions == 1


def test_prompts_are_expected_soon_after_an_arrival_while_a_slot_is_free():
    sched = streaming()
    assert sched.expects_prompts(0.99 * ARRIVAL_SECONDS)
    assert not sched.expects_prompts(ARRIVAL_SECONDS)
    sched = streaming(slots=2)
    assert not sched.expects_prompts(0.0)


def test_prompts_that_wait_with_a_slot_or_for_a_free_one_are_expected_at_any_time():
    sched = streaming(budget=8)
    sched.add(sequence("long", 30, 2))
    assert sched.expects_prompts(PLAYED)
    sched.schedule(PLAYED)
    assert sched.expects_prompts(PLAYED)
    while sched.schedule(PLAYED).chunks:
        pass
    assert not sched.expects_prompts(PLAYED)


def test_the_youngest_stream_is_preempted_keeps_its_slot_and_is_prefilled_again():
    sched = scheduler(slots=2, pages=6, budget=64)
    old, young = sequence("old", 8, 12), sequence("young", 5, 6)
    sched.add(old)
    sched.add(young)
    again = []
    while not sched.preemptions:
        sched.schedule(PLAYED)
    assert sched.waiting[0] is young and young.slot is not None and not young.pages
    made, slot = young.launched, young.slot

    def watch(work):
        again.extend(chunk for chunk in work.chunks if chunk.sequence is young)
        assert not any(chunk.starts_generation for chunk in work.chunks)

    sched_steps = run_from(sched, [old, young], watch)
    assert young.slot == slot and again[0].start == 0 and again[-1].stop == 5 + made
    assert sched_steps == {"old": 12, "young": 6}


def run_from(sched, sequences, each):
    for seq in sequences:
        seq.delivered = seq.launched
    run(sched, each=each)
    return {seq.id: seq.launched for seq in sequences}


def test_a_stream_at_its_limit_is_paused_and_preempted_first():
    sched = scheduler(slots=2, pages=6, budget=64)
    paused, busy = sequence("paused", 8, 12, limit=1), sequence("busy", 8, 12)
    sched.add(paused)
    sched.add(busy)
    for _ in range(13):  # the paused stream is only in the first round
        for seq in sched.schedule(PLAYED).steps:
            seq.delivered += 1
    assert paused.launched == 1 and busy.launched == 12
    sched.remove(busy)
    assert not sched.runnable or not paused.prefilled
    paused.limit += 100
    assert run(sched).count("paused") == 11


def test_the_queue_is_bounded_and_its_error_has_a_retry_time():
    sched = scheduler(slots=1, max_queue=2)
    for name in "abc":
        sched.add(sequence(name, 2, 2))
    with pytest.raises(Exhausted, match="limit is 2") as refused:
        sched.add(sequence("d", 2, 2))
    assert refused.value.retry_after


def test_a_request_that_continues_a_stream_comes_first_and_is_never_refused():
    sched = scheduler(slots=1, max_queue=1)
    for name in ("first", "new"):
        sched.add(sequence(name, 2, 2))
    for name in ("next", "after"):
        sched.add(sequence(name, 2, 2, continues=True))
    with pytest.raises(Exhausted):
        sched.add(sequence("late", 2, 2))
    assert list(dict.fromkeys(run(sched))) == ["next", "after", "first", "new"]


def test_a_removed_sequence_frees_its_slot_and_pages():
    sched = scheduler(slots=1)
    running, waiting = sequence("a", 2, 9), sequence("b", 2, 9)
    sched.add(running)
    sched.add(waiting)
    sched.schedule(PLAYED)
    sched.remove(waiting)
    sched.remove(running)
    assert not sched.runnable and sched.blocks.used == 0 and len(sched.free_slots) == 1


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20), st.booleans(), st.booleans()), min_size=1, max_size=10),
    st.integers(1, 3),
    st.integers(8, 24),
    st.integers(1, 40),
    st.randoms(use_true_random=False),
)
def test_streams_that_share_slots_get_all_their_steps_under_any_pressure(requests, slots, pages, budget, rng):
    """The limits of some streams rise at a time, by little, and every stream is heard at once."""
    sched = scheduler(slots=slots, pages=pages, budget=budget, max_queue=100)
    expected, made, now = {}, {}, 0.0
    for index, (length, steps, continues, is_batch) in enumerate(requests):
        seq = sequence(str(index), length, steps, rng.randint(1, 5), continues, is_batch)
        with contextlib.suppress(TooLong):
            sched.add(seq)
            expected[seq.id], made[seq.id] = seq, 0
    for _ in range(10_000):
        if not expected:
            break
        if not sched.runnable:
            for seq in rng.sample(list(expected.values()), rng.randint(1, len(expected))):
                seq.limit += rng.randint(1, 5)
            continue
        now += 0.01
        work = sched.schedule(now)
        assert work
        owned = [page for seq in sched.running for page in seq.pages]
        assert len(owned) == len(set(owned)) == sched.blocks.used
        taken = [seq.slot for seq in expected.values() if seq.slot is not None]
        assert sorted(taken + sched.free_slots) == list(range(slots))
        for queue in (sched.running, sched.waiting):
            assert [seq.is_batch for seq in queue] == sorted(seq.is_batch for seq in queue)
        assert not {seq for seq, _ in work.swapped_out} & work.sequences
        for seq in work.steps:
            assert seq.slot is not None and seq.filled == seq.length
            seq.delivered += 1
            seq.on_audio(0.16, now)
            made[seq.id] += 1
            if seq.delivered == seq.max_steps:
                sched.remove(expected.pop(seq.id))
    assert not expected and sched.blocks.used == 0 and not sched.swapped
    assert all(made.values())


def test_the_stream_paused_longest_is_swapped_out_first():
    sched = scheduler(slots=2, pages=64)
    first, second = sequence("first", 3, 9, limit=2), sequence("second", 3, 9, limit=1)
    sched.add(first)
    sched.add(second)
    for now in (1.0, 2.0):
        for seq in sched.schedule(now).steps:
            seq.delivered += 1
    sched.add(sequence("new", 3, 9))
    assert [seq.id for seq, _ in sched.schedule(3.0).swapped_out] == ["second"]


def heard(name: str, *, until: float, limit: int = 100) -> Sequence:
    """A stream that goes on, whose listener has audio until that time."""
    seq = sequence(name, 3, 100, limit=limit, continues=True)
    seq.plays_until = until - 0.16
    return seq


@pytest.mark.parametrize(("until", "arriving", "swapped"), [(9.0, True, True), (9.0, False, False), (2.5, True, False)])
def test_only_a_stream_that_was_heard_takes_the_slot_of_one_that_can_run(until, arriving, swapped):
    sched = scheduler(slots=1, pages=64)
    running = heard("running", until=until)
    sched.add(running)
    sched.schedule(0.0)
    running.delivered = 1
    sched.add(sequence("other", 3, 5, continues=arriving))
    work = sched.schedule(1.0)
    assert bool(work.swapped_out) is swapped
    assert ["other" if swapped else "running"] == [seq.id for seq in work.steps]


def test_the_slot_of_a_listener_with_the_most_time_left_is_taken():
    """One at twice the speed has half of it."""
    sched = scheduler(slots=2, pages=64)
    for name, speed in (("fast", 2.0), ("slow", 1.0)):
        seq = sequence(name, 3, 100, continues=True, speed=speed)
        sched.add(seq)
        sched.schedule(0.0)
        seq.on_audio(8.0, 0.0)
    for seq in sched.running:
        seq.delivered = seq.launched
    sched.add(sequence("other", 3, 5, continues=True))
    assert [seq.id for seq, _ in sched.schedule(1.0).swapped_out] == ["slow"]


def test_streams_do_not_take_a_slot_from_each_other_in_every_round():
    """Each makes the audio of the margin before the other comes back."""
    sched = scheduler(slots=1, pages=64, max_len=256)
    streams = [heard("a", until=0.0), heard("b", until=0.0)]
    for seq in streams:
        sched.add(seq)
    owners = []
    for turn in range(100):
        for seq in sched.schedule(0.04 * turn).steps:
            owners.append(seq.id)
            seq.delivered += 1
            seq.on_audio(0.16, 0.04 * turn)
            seq.limit += 1
    changes = sum(before != after for before, after in itertools.pairwise(owners))
    assert 2 <= changes <= len(owners) * 0.16 / SWAP_MARGIN
