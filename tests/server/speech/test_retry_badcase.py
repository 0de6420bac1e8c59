"""Segments whose speech ran on are generated again while nothing of them was sent."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest
from support.servers.sessions import SlowClient, session
from support.servers.waiting import until

from voxcpm_grpc.request import MAX_SEED, Sampling
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values.inputs import Continuity, Flush, Interrupt, Text

STEP = 960
STARTED, FINISHED = 1, 2


def config(seed: int = 7, **turn: Any) -> pb.GenerateConfig:
    return pb.GenerateConfig(turn=pb.TurnConfig(sampling=pb.Sampling(seed=seed), retry_badcase=True, **turn))


def samples_of(chunks: list[pb.AudioChunk]) -> np.ndarray:
    return np.frombuffer(b"".join(chunk.audio for chunk in chunks), "<i2")


def seeds(served: Any) -> list[int]:
    return [request.sampling.seed for request in served.pool.requests]


async def test_the_next_seed_speaks_a_segment_that_ran_on(served):
    served.pool.seeds_that_run_on = {7, 8}
    chunks = await served.generate(config(), "One is.")
    assert seeds(served) == [7, 8, 9]
    expected = await served.generate(config(seed=9), "One is.")
    assert (samples_of(chunks) == samples_of(expected)).all()
    kinds = [(e.kind, e.at_samples) for c in chunks for e in c.segment_events]
    assert kinds == [(STARTED, 0), (FINISHED, 7 * STEP)]
    summary = chunks[-1].summary
    assert (summary.segments, summary.generated_steps, summary.total_samples) == (1, 21, 7 * STEP)
    assert chunks[0].header.seed == 7
    await served.idle()


async def test_the_last_attempt_is_sent_as_it_is(served):
    served.pool.seeds_that_run_on = {7, 8, 9, 10}
    assert samples_of(await served.generate(config(retry_badcase_max_times=2), "One is.")).size == 7 * STEP
    assert seeds(served) == [7, 8]
    await served.generate(config(), "One is.")
    assert seeds(served)[2:] == [7, 8, 9]


async def test_each_segment_begins_with_the_seed_of_its_turn(served):
    served.pool.seeds_that_run_on = {7}
    chunks = await served.generate(config(), "One is. Two is.")
    assert seeds(served) == [7, 8, 7, 8]
    assert chunks[-1].summary.segments == 2


async def test_without_retry_badcase_audio_is_sent_at_once_and_never_made_again(served):
    served.pool.seeds_that_run_on = {7}
    plain = pb.GenerateConfig(turn=pb.TurnConfig(sampling=pb.Sampling(seed=7), retry_badcase_max_times=5))
    await served.generate(plain, "One is.")
    assert seeds(served) == [7]


async def test_the_seed_after_the_largest_is_0(served):
    served.pool.seeds_that_run_on = {MAX_SEED}
    await served.generate(config(seed=MAX_SEED), "One is.")
    assert seeds(served) == [MAX_SEED, 0]


async def test_nothing_of_a_segment_is_sent_before_it_is_whole(served):
    served.pool.hold_after = 3
    call = served.stub.Generate()
    await call.write(pb.GenerateRequest(config=config()))
    await call.write(pb.GenerateRequest(text="One is."))
    await call.write(pb.GenerateRequest(flush=pb.Flush()))
    await until(lambda: served.pool.steps == 3)
    await call.write(pb.GenerateRequest(interrupt=pb.Interrupt(tag="i")))
    first = await call.read()
    assert (first.interrupted.tag, first.interrupted.sent_samples, first.sequence) == ("i", 0, 0)
    call.cancel()
    served.pool.release()
    await served.idle()


@pytest.mark.parametrize("continuity", list(Continuity))
@pytest.mark.parametrize("runs_on", [set(), {7}])
def test_a_segment_longer_than_the_lead_is_made_whole_and_its_room_comes_back(fake, continuity, runs_on):
    """The lead is 10 chunks; each segment has 70, and the next one starts as soon as the client has taken enough."""
    pool = fake(char_steps=10, seeds_that_run_on=runs_on)
    client = SlowClient(2)
    texts = [Text("One is. "), Text("Two is. "), Text("Six is. "), Text("Ten is.")]

    def script() -> Any:
        yield from texts
        yield 50.0
        yield lambda: counts.append(pool.steps)
        client.resume()
        yield 50.0
        yield Flush("", False)

    counts: list[int] = []
    sampling = Sampling(seed=7)
    chunks = session(
        pool, script(), client=client, continuity=continuity, max_lead=10 * STEP / 48000, sampling=sampling, attempts=3
    )
    assert chunks[-1].summary.total_samples == (28 + 3) * 10 * STEP  # with the spaces between words
    assert counts[0] <= 10 * 8 * (1 + bool(runs_on))  # the first segment alone, before the client reads on
    assert len(pool.requests) == 4 * (1 + bool(runs_on))


def test_an_interrupt_of_a_segment_that_is_held_back_frees_its_room(fake):
    pool = fake(char_steps=10)
    pool.hold_after = 30

    def script() -> Any:
        yield Text("One is.")
        yield Flush("f", False)
        yield 1.0
        yield Interrupt("i")
        yield pool.release
        yield 1.0
        for _ in range(3):
            yield Text("Two is.")
            yield Flush("", False)

    sampling = Sampling(seed=7)
    chunks = session(pool, script(), max_lead=10 * STEP / 48000, sampling=sampling, attempts=2)
    (reply,) = [c.interrupted for c in chunks if c.HasField("interrupted")]
    assert (reply.sent_samples, list(reply.dropped_flush_tags)) == (0, ["f"])
    assert chunks[-1].summary.segments == 3


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"retry_badcase_max_times": 0}, "retry_badcase_max_times", "is 0; it must be 1 to 10"),
        ({"retry_badcase_max_times": 11}, "retry_badcase_max_times", "is 11; it must be 1 to 10"),
        ({"retry_badcase_ratio_threshold": 0.0}, "retry_badcase_ratio_threshold", "it must be above 0, up to 100"),
        ({"retry_badcase_ratio_threshold": float("nan")}, "retry_badcase_ratio_threshold", "it must be above 0"),
        ({"max_silence": {"seconds": 0}}, "max_silence", "it must be more than 0"),
    ],
)
async def test_a_value_out_of_range_is_refused(served, details_of, fields, field, words):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(config(**fields), "Hello.")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in str(caught.value.details())
    assert details_of(caught.value).field == f"config.turn.{field}"


async def test_the_engine_gets_the_ratio_and_the_silence_in_steps(served):
    await served.generate(config(retry_badcase_ratio_threshold=2.5, max_silence={"nanos": 50_000_000}), "One is.")
    sampling = served.pool.requests[0].sampling
    assert (sampling.steps_per_token, sampling.max_silent_steps) == (2.5, 3)  # steps of 20 ms
    await served.generate("One is.")
    sampling = served.pool.requests[1].sampling
    assert (sampling.steps_per_token, sampling.max_silent_steps) == (6.0, None)
