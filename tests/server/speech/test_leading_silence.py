"""The silence at the start of a turn is not sent, and everything that counts samples counts those that are sent."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from support.clients.grpc_types import EOF
from support.engines.voice_parts import latents_of
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb

RATE, STEP = 48000, 960  # of the fake engine, which makes one step for each character
KEPT = RATE // 100
SILENCE = 7200  # samples: 7 steps and a half
QUIET = np.random.default_rng(2).standard_normal(SILENCE).astype(np.float32) * 10 ** (-75 / 20)
FIRST, SECOND = "Here is the first one.", "And a second one."
STARTED, FINISHED = pb.SEGMENT_EVENT_KIND_STARTED, pb.SEGMENT_EVENT_KIND_FINISHED
FLUSH, END = pb.Flush(tag="f"), pb.Flush(tag="e", end_turn=True)


def duration(seconds: float) -> Duration:
    made = Duration()
    made.FromNanoseconds(int(seconds * 1e9))
    return made


def config(trim: float | None = None, output: pb.AudioFormat | None = None, **fields: Any) -> pb.GenerateConfig:
    made = pb.GenerateConfig(
        output=output or pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_F32LE),
        turn=pb.TurnConfig(sampling=pb.Sampling(seed=7)),
        **fields,
    )
    if trim is not None:
        made.trim_leading_silence.CopyFrom(duration(trim))
    return made


@pytest.fixture
def quiet(served):
    """A front whose engine begins all speech with silence."""
    served.pool.opening = QUIET
    return served


def audio(chunks: list[pb.AudioChunk]) -> np.ndarray:
    assert [chunk.offset_samples for chunk in chunks] == [
        sum(chunk.sample_count for chunk in chunks[:index]) for index in range(len(chunks))
    ]
    found = np.frombuffer(b"".join(chunk.audio for chunk in chunks), "<f4")
    assert len(found) == chunks[-1].summary.total_samples
    return found


def events(chunks: list[pb.AudioChunk], kind: Any) -> list[pb.SegmentEvent]:
    return [event for chunk in chunks for event in chunk.segment_events if event.kind == kind]


def trimmed(chunks: list[pb.AudioChunk]) -> list[int]:
    """The samples that the start of each segment reports, which the summary adds up."""
    found = [event.trimmed_samples for event in events(chunks, STARTED)]
    assert chunks[-1].summary.trimmed_samples == sum(found)
    assert not any(event.trimmed_samples for event in events(chunks, FINISHED))
    return found


async def test_the_silence_before_a_turn_is_left_out_and_all_samples_after_it_are_the_same(quiet):
    whole = await quiet.generate(config(0), f"{FIRST} {SECOND}", FLUSH, "More of it.", END, "Another turn.")
    heard = await quiet.generate(config(), f"{FIRST} {SECOND}", FLUSH, "More of it.", END, "Another turn.")
    assert trimmed(whole) == [0, 0, 0, 0]
    assert trimmed(heard) == [SILENCE - KEPT, 0, 0, SILENCE - KEPT]  # the first segment of each turn
    last = events(whole, STARTED)[3].at_samples
    expected = np.delete(audio(whole), np.r_[: SILENCE - KEPT, last : last + SILENCE - KEPT])
    np.testing.assert_array_equal(audio(heard), expected)
    shifts = [SILENCE - KEPT] * 3 + [2 * (SILENCE - KEPT)]
    for kind, moved in ((STARTED, [0, *shifts[:3]]), (FINISHED, shifts)):
        before, after = ([event.at_samples for event in events(chunks, kind)] for chunks in (whole, heard))
        assert [one - other for one, other in zip(before, after, strict=True)] == moved
    flushes = [[chunk.flush_done.at_samples for chunk in one if chunk.HasField("flush_done")] for one in (whole, heard)]
    assert [one - other for one, other in zip(*flushes, strict=True)] == [SILENCE - KEPT] * 2
    assert heard[-1].summary.generated_steps == whole[-1].summary.generated_steps


async def test_the_first_message_begins_10_ms_before_the_first_sound_and_waits_for_no_more(quiet):
    quiet.pool.hold_after = SILENCE // STEP + 1  # the last of these steps has the first sound
    call = quiet.stub.Generate(iter([pb.GenerateRequest(config=config()), pb.GenerateRequest(text=FIRST)]))
    async with asyncio.timeout(HANG_SECONDS):
        while not (first := await call.read()).audio:
            pass
        quiet.pool.release()
        while await call.read() is not EOF:
            pass
    assert first.segment_events[0].kind == STARTED and first.segment_events[0].at_samples == 0
    samples = np.frombuffer(first.audio, "<f4")
    np.testing.assert_array_equal(samples[:KEPT], QUIET[-KEPT:])
    assert abs(samples[KEPT : KEPT + 240]).max() > 0.1
    assert first.sample_count == KEPT + STEP // 2


@pytest.mark.parametrize("rate", [8000, 22050, 44100])
async def test_positions_are_exact_at_every_rate(quiet, rate):
    output = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_F32LE, sample_rate_hz=rate)
    messages = (f"{FIRST} {SECOND}", FLUSH, "More.")
    whole, heard = [await quiet.generate(config(trim, output), *messages) for trim in (0, 1)]
    (lost, *others) = trimmed(heard)
    assert lost == pytest.approx((SILENCE - KEPT) * rate / RATE, abs=rate // 200) and others == [0, 0]
    np.testing.assert_array_equal(audio(heard), audio(whole)[lost:])
    ends = [[event.at_samples for event in events(chunks, FINISHED)] for chunks in (whole, heard)]
    assert [one - other for one, other in zip(*ends, strict=True)] == [lost] * 3


@pytest.mark.parametrize("encoding", [pb.AUDIO_ENCODING_OGG_OPUS, pb.AUDIO_ENCODING_MP3, pb.AUDIO_ENCODING_FLAC])
async def test_compressed_audio_is_shorter_by_what_was_left_out(quiet, encoding):
    output = pb.AudioFormat(encoding=encoding)
    whole, heard = [await quiet.generate(config(trim, output), FIRST) for trim in (0, 1)]
    assert trimmed(heard) == [SILENCE - KEPT]
    lost = whole[-1].summary.total_samples - heard[-1].summary.total_samples
    assert lost == pytest.approx(SILENCE - KEPT, abs=RATE // 40)  # the last frame is filled
    assert events(whole, FINISHED)[0].at_samples - events(heard, FINISHED)[0].at_samples == SILENCE - KEPT


async def test_a_turn_after_an_interrupt_begins_with_sound_again_and_what_was_heard_is_exact(quiet):
    pool = quiet.pool
    pool.hold_after = 20
    call = quiet.stub.Generate()
    await call.write(pb.GenerateRequest(config=config()))
    await call.write(pb.GenerateRequest(text=f"{FIRST} {SECOND}"))
    received: list[pb.AudioChunk] = []
    while sum(chunk.sample_count for chunk in received) < 20 * STEP - (SILENCE - KEPT):
        received.append(await call.read())
    sent = sum(chunk.sample_count for chunk in received)
    await call.write(pb.GenerateRequest(interrupt=pb.Interrupt(tag="i", played_samples=sent)))
    while not received[-1].HasField("interrupted"):
        received.append(await call.read())
    reply = received[-1].interrupted
    pool.release()
    await call.write(pb.GenerateRequest(text=SECOND))
    await call.done_writing()
    while (chunk := await call.read()) is not EOF:
        received.append(chunk)
    assert reply.sent_samples == sent
    assert (reply.heard_turn_index, reply.heard_estimated) == (0, True) and 0 < reply.heard_input_end < len(FIRST)
    assert trimmed(received) == [SILENCE - KEPT, SILENCE - KEPT]
    assert events(received, STARTED)[1].at_samples == sent
    assert len(audio(received)) == sent + len(pool.requests[-1].text) * STEP - (SILENCE - KEPT)


async def test_an_interrupt_in_the_silence_leaves_nothing_behind(quiet):
    pool = quiet.pool
    pool.hold_after = 5
    call = quiet.stub.Generate()
    await call.write(pb.GenerateRequest(config=config()))
    await call.write(pb.GenerateRequest(text=f"{FIRST} More"))
    received = [await call.read()]  # the header
    await pool.stalled()
    await call.write(pb.GenerateRequest(interrupt=pb.Interrupt(tag="i", played_samples=0)))
    while not received[-1].HasField("interrupted"):
        received.append(await call.read())
    reply = received[-1].interrupted
    pool.release()
    await call.write(pb.GenerateRequest(text=SECOND))
    await call.done_writing()
    while (chunk := await call.read()) is not EOF:
        received.append(chunk)
    assert (reply.sent_samples, reply.heard_input_end) == (0, 0)
    assert [event.trimmed_samples for event in events(received, STARTED)] == [SILENCE - KEPT]  # of the second turn
    assert len(audio(received)) == len(pool.requests[-1].text) * STEP - (SILENCE - KEPT)


async def test_pauses_and_speech_after_them_stay_as_they_are(quiet):
    pause = pb.GenerateRequest(pause=pb.Pause(milliseconds=100))
    chunks = await quiet.generate(config(), pause, FIRST, pause, SECOND)
    spoken = sum(len(request.text) for request in quiet.pool.requests) * STEP
    assert trimmed(chunks) == [0, 0]
    assert len(audio(chunks)) == 2 * 4800 + spoken
    chunks = await quiet.generate(config(), FIRST, pause, SECOND)
    assert trimmed(chunks) == [SILENCE - KEPT, 0]
    assert len(audio(chunks)) == 4800 + spoken - (SILENCE - KEPT)


@pytest.mark.parametrize("level", [-58, -50])
async def test_speech_that_opens_with_noise_is_left_alone(quiet, level):
    quiet.pool.opening = QUIET * 10 ** ((level + 75) / 20)
    assert trimmed(await quiet.generate(config(), FIRST)) == [0]


async def test_speech_that_is_silent_for_longer_than_the_limit_is_sent_as_it_is(quiet):
    chunks = await quiet.generate(config(0.1), FIRST)
    assert trimmed(chunks) == [0] and len(audio(chunks)) == len(FIRST) * STEP
    quiet.pool.opening = np.zeros(10**6, np.float32)  # a segment that is silent to its end
    chunks = await quiet.generate(config(), FIRST, FLUSH, "More.")
    assert trimmed(chunks) == [0, 0] and len(audio(chunks)) == (len(FIRST) + 5) * STEP
    assert not chunks[-1].summary.HasField("time_to_first_audible")
    for before, after in pairwise(event.at_samples for event in events(chunks, FINISHED)):
        assert (before, after) == (len(FIRST) * STEP, len(audio(chunks)))


async def test_the_summary_says_when_the_first_sound_is_heard(quiet):
    for trim, later in ((0, SILENCE / RATE), (1, KEPT / RATE)):
        summary = (await quiet.generate(config(trim), FIRST))[-1].summary
        audible, first = (
            one.ToNanoseconds() / 1e9 for one in (summary.time_to_first_audible, summary.time_to_first_audio)
        )
        assert 0 < first < audible and audible == pytest.approx(first + later, abs=0.006)  # exact to a window
        assert summary.text_to_first_audible.ToNanoseconds() >= summary.time_to_first_audible.ToNanoseconds()


async def test_nobody_waits_for_batch_streams_so_they_keep_their_silence(quiet):
    batch = pb.PRIORITY_BATCH
    assert trimmed(await quiet.generate(config(priority=batch), FIRST)) == [0]
    assert trimmed(await quiet.generate(config(1, priority=batch), FIRST)) == [SILENCE - KEPT]


async def test_the_server_sets_the_default(serve_front):
    async with serve_front(trim_leading_silence_seconds=0) as served:
        served.pool.opening = QUIET
        assert trimmed(await served.generate(config(), FIRST)) == [0]
        assert trimmed(await served.generate(config(1), FIRST)) == [SILENCE - KEPT]


async def test_later_segments_continue_the_speech_with_its_silence(quiet):
    for trim in (0, 1):
        await quiet.generate(config(trim), f"{FIRST} {SECOND}")
    (_, plain, _, after) = quiet.pool.requests
    assert plain.conditioning.prompt is not None and after.conditioning.prompt is not None
    np.testing.assert_array_equal(latents_of(plain.conditioning.prompt), latents_of(after.conditioning.prompt))


@pytest.mark.parametrize(("seconds", "rule"), [(10.5, "must be 0 to 10 s"), (-1, "must be 0 or more")])
async def test_a_limit_out_of_range_is_refused(served, seconds, rule):
    with pytest.raises(grpc.aio.AioRpcError, match=rule) as caught:
        await served.generate(pb.GenerateConfig(trim_leading_silence=duration(seconds)), FIRST)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
