"""Audio that its listener does not need yet comes from the engine in fewer and longer reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from voxcpm_grpc.errors import Internal
from voxcpm_grpc.events import Admitted, AudioChunk, Finished, FinishReason
from voxcpm_grpc.request import Request
from voxcpm_grpc.worker.gathering import GATHERED_SECONDS, RESERVE_SECONDS, WAIT_SECONDS, Gathering

STEP = 0.16  # seconds of audio of a chunk
MOST = int(GATHERED_SECONDS / STEP)
ADMITTED = Admitted(queue_seconds=0.0, prompt_tokens=1, cached_tokens=0)
FINISHED = Finished(reason=FinishReason.STOP, steps=1, engine_seconds=0.0)


def chunk(index: int, *, last: bool = False) -> AudioChunk:
    samples = np.full(4, index, np.float32)
    return AudioChunk(index=index, samples=samples, steps=bytes([index]), silent=index, last=last)


def gathering(*, window: int = 100, id: str = "r", **request) -> Gathering:
    return Gathering(Request(id=id, text="x", **request), window, STEP, 0.0)


def reported(gathered: Gathering, chunks: Iterable[AudioChunk], step_time: float) -> Iterator[tuple[float, AudioChunk]]:
    """The reports of an engine that makes a chunk every `step_time` seconds, and looks as often for what is due."""
    for count, one in enumerate(chunks, start=1):
        now = count * step_time
        for result in (*gathered.add(one, now), *(gathered.take() if gathered.due <= now else ())):
            assert isinstance(result, AudioChunk)
            yield now, result


def test_reports_are_longer_when_the_listener_has_enough_audio():
    made = [result.chunks for _, result in reported(gathering(), map(chunk, range(60)), 0.01)]
    alone = 1 + int(RESERVE_SECONDS / STEP)
    assert made[:alone] == [1] * alone
    assert set(made[alone + 1 :]) == {MOST}


def test_streams_that_began_together_report_in_different_steps():
    firsts = set[int]()
    for number in range(50):
        gathered = gathering(id=f"r{number}", lead_seconds=10.0)
        _, (_, first), *_ = reported(gathered, map(chunk, range(20)), 0.001)
        firsts.add(first.chunks)
    assert firsts == set(range(1, MOST + 1))


def test_merged_chunks_have_all_that_they_had_alone():
    gathered = gathering(lead_seconds=5.0)
    results = [*gathered.add(ADMITTED, 0.0)]
    for _, result in reported(gathered, map(chunk, range(20)), 0.001):
        results.append(result)
    results += gathered.add(chunk(20, last=True), 0.1)
    results += gathered.add(FINISHED, 0.1)
    assert results[0] is ADMITTED and results[-1] is FINISHED
    made = [one for one in results if isinstance(one, AudioChunk)]
    assert [one.index for one in made] == [0, *(one.end for one in made[:-1])]
    assert [one.last for one in made] == [False] * (len(made) - 1) + [True] and made[-1].chunks == 1
    assert MOST in {one.chunks for one in made}
    assert np.concatenate([one.samples for one in made]).tolist() == np.repeat(np.arange(21), 4).tolist()
    assert b"".join(one.steps for one in made) == bytes(range(21))
    assert [one.silent for one in made] == [one.end - 1 for one in made]


def test_a_chunk_is_copied_because_the_engine_uses_its_memory_again():
    gathered, memory, made = gathering(lead_seconds=5.0), np.zeros(4, np.float32), list[float]()
    for index in range(20):
        memory[:] = index
        for result in gathered.add(AudioChunk(index=index, samples=memory), 0.0):
            assert isinstance(result, AudioChunk)
            made += result.samples.tolist()
    assert made == np.repeat(np.arange(len(made) // 4), 4).tolist() and len(made) > 4 * MOST


def test_the_first_chunk_of_an_engine_never_waits():
    [first] = gathering(lead_seconds=100.0).add(chunk(7), 0.0)
    assert isinstance(first, AudioChunk) and first.index == 7


@pytest.mark.parametrize("share", [0.9, 1.5])
def test_nothing_waits_when_the_listener_has_little(share):
    made = list(reported(gathering(), map(chunk, range(60)), share * STEP))
    assert [(one.index, round(at / share / STEP)) for at, one in made] == [(index, index + 1) for index in range(60)]


def test_a_listener_has_a_reserve_and_waits_only_for_a_moment():
    ends, gaps, before = 0.0, list[float](), 0.0
    for at, one in reported(gathering(), map(chunk, range(100)), 0.5 * STEP):
        if one.chunks > 1:
            assert ends - at > RESERVE_SECONDS - 0.5 * STEP
        gaps.append(at - before)
        ends, before = max(ends, at) + one.chunks * STEP, at
    assert max(gaps) <= WAIT_SECONDS + 2 * 0.5 * STEP
    assert ends > 100 * 0.5 * STEP + 2 * RESERVE_SECONDS


def test_a_faster_listener_has_less():
    """At twice the speed, an engine of twice the real time only keeps up."""
    made = list(reported(gathering(speed=2.0), map(chunk, range(60)), 0.49 * STEP))
    assert [one.chunks for _, one in made] == [1] * 60


@pytest.mark.parametrize(("window", "most"), [(1, 1), (3, 1), (4, 2), (100, MOST)])
def test_at_most_half_of_a_window_waits(window, most):
    """The engine works on the other half."""
    made = reported(gathering(window=window, lead_seconds=10.0), map(chunk, range(30)), 0.001)
    assert max(one.chunks for _, one in made) == most


def test_an_error_follows_the_audio_before_it():
    gathered, error, index = gathering(lead_seconds=5.0), Internal(), 0
    while gathered.add(chunk(index), 0.0):
        index += 1
    before, after = gathered.add(error, 0.0)
    assert isinstance(before, AudioChunk) and before.index == index
    assert after is error and gathered.take() == []
