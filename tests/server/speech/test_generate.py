"""Generate through a real channel with a fake pool, which makes one step for each character of text."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import grpc
import numpy as np
import pytest
import soxr
from google.protobuf.duration_pb2 import Duration
from support.clients.grpc_types import EOF
from support.servers.sessions import SlowClient, session
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.errors import Aborted, Exhausted, Reason, Unavailable
from voxcpm_grpc.request import Request, Sampling
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.speech.calls import slot_wait
from voxcpm_server.values.inputs import Interrupt, Text

STEP = 960
STARTED, FINISHED, DROPPED = 1, 2, 3
MANUAL, INDEPENDENT = pb.SEGMENTATION_MODE_MANUAL, pb.CONTINUITY_MODE_INDEPENDENT


def audio(chunks: list[pb.AudioChunk], dtype: str = "<i2") -> np.ndarray:
    return np.frombuffer(b"".join(c.audio for c in chunks), dtype)


def check_numbers(chunks: list[pb.AudioChunk]) -> None:
    """Check the numbers of a stream that ended with OK."""
    assert [c.sequence for c in chunks] == list(range(len(chunks)))
    assert all(b.offset_samples == a.offset_samples + a.sample_count for a, b in pairwise(chunks))
    assert [c.HasField("header") for c in chunks] == [True, *[False] * (len(chunks) - 1)]
    assert [c.HasField("summary") for c in chunks] == [*[False] * (len(chunks) - 1), True]
    summary = chunks[-1].summary
    assert summary.total_samples == sum(c.sample_count for c in chunks)
    assert summary.total_bytes == sum(len(c.audio) for c in chunks)


def speech_of(spoken_by: Any, request: Request) -> np.ndarray:
    return np.concatenate([spoken_by(request, step) for step in range(len(request.text))])


def events(chunks: list[pb.AudioChunk]) -> list[tuple]:
    return [(e.kind, e.turn_index, e.segment_index, e.at_samples) for c in chunks for e in c.segment_events]


def config(**fields: Any) -> pb.GenerateConfig:
    sampling = pb.Sampling(seed=7, **fields.pop("sampling", {}))
    segmentation = pb.Segmentation(**fields.pop("segmentation", {}))
    turn = pb.TurnConfig(sampling=sampling, style=fields.pop("style", ""))
    return pb.GenerateConfig(turn=turn, segmentation=segmentation, **fields)


async def test_one_text_without_a_config(served):
    chunks = await served.generate("Hello world.")
    check_numbers(chunks)
    header, summary = chunks[0].header, chunks[-1].summary
    assert not chunks[0].audio  # the header does not wait for audio
    assert header.format == pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_S16LE, sample_rate_hz=48000)
    assert (header.model, header.model_fingerprint) == ("fake", served.pool.info.fingerprint)
    assert header.request_id
    assert (summary.total_samples, summary.turns, summary.segments, summary.input_chars) == (12 * STEP, 1, 1, 12)
    assert (summary.generated_steps, summary.cached_prefix_tokens) == (12, 2)
    assert summary.finish_reason == pb.FINISH_REASON_COMPLETE
    assert summary.queue_time.ToMilliseconds() == header.queue_time.ToMilliseconds() == 10
    assert events(chunks) == [(STARTED, 0, 0, 0), (FINISHED, 0, 0, 12 * STEP)]
    await served.idle()


async def test_the_audio_is_what_the_engine_made(served, spoken_by):
    chunks = await served.generate(config(), "Hello world.")
    (request,) = served.pool.requests
    assert np.abs(audio(chunks) / 32768 - speech_of(spoken_by, request)).max() < 1 / 32768


async def test_a_random_seed_is_in_the_header_and_repeats_the_speech(served):
    first = await served.generate("Hello.")
    seed = first[0].header.seed
    again = await served.generate(pb.GenerateConfig(turn=pb.TurnConfig(sampling=pb.Sampling(seed=seed))), "Hello.")
    other = await served.generate("Hello.")
    assert audio(first).tobytes() == audio(again).tobytes() != audio(other).tobytes()
    assert other[0].header.seed != seed


async def test_a_stream_without_text_is_a_header_and_a_summary(served):
    for messages in ((), (pb.Finish(),), (config(),), (config(), pb.Finish())):
        (chunk,) = await served.generate(*messages)
        check_numbers([chunk])
        assert chunk.summary.total_samples == 0


TEXT = "First one here. Second, with Dr. Who. 第三句。Fourth 😀! And a last one"


async def test_the_division_into_messages_does_not_matter(served):
    whole = await served.generate(config(), TEXT)
    check_numbers(whole)
    for size in (1, 3, 10):
        cut = await served.generate(config(), *[TEXT[i : i + size] for i in range(0, len(TEXT), size)])
        assert audio(cut).tobytes() == audio(whole).tobytes()
        assert events(cut) == events(whole)


async def test_the_end_of_the_last_segment_comes_with_the_summary(served):
    chunks = await served.generate(config(segmentation={"mode": MANUAL}), "Hello world.")
    assert [event.kind for event in chunks[-1].segment_events] == [FINISHED]
    assert chunks[-2].sample_count


async def test_segment_events_have_text_and_range(served):
    chunks = await served.generate(config(), "One is here.  Two is here. ", pb.Flush(end_turn=True), "Three.")
    started = [e for c in chunks for e in c.segment_events if e.kind == STARTED]
    assert [(e.turn_index, e.segment_index, e.text, e.input_start, e.input_end) for e in started] == [
        (0, 0, "One is here.", 0, 14),
        (0, 1, "Two is here.", 14, 27),
        (1, 0, "Three.", 0, 6),
    ]
    assert chunks[-1].summary.turns == 2
    for chunk in chunks:
        if chunk.sample_count:
            assert chunk.turn_index == (chunk.offset_samples >= 25 * STEP)  # the second begins with a space


async def test_manual_waits_for_a_flush(served):
    chunks = await served.generate(config(segmentation={"mode": MANUAL}), "One. Two. ", "Three. Four.")
    assert chunks[-1].summary.segments == 1
    assert served.pool.requests[0].text == "One. Two. Three. Four."


@pytest.mark.parametrize("rate", [8000, 16000, 44100, 48000])
async def test_the_reply_to_a_flush_has_the_position_of_its_end(served, spoken_by, rate):
    output = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_F32LE, sample_rate_hz=rate)
    chunks = await served.generate(
        config(output=output), "One. Two.", pb.Flush(tag="a"), pb.Flush(tag="b", end_turn=True), "Three."
    )
    check_numbers(chunks)
    done = [
        (c.flush_done.tag, c.flush_done.at_samples, c.offset_samples + c.sample_count)
        for c in chunks
        if c.HasField("flush_done")
    ]
    expected = round(9 * STEP * rate / 48000)
    assert done == [("a", expected, expected), ("b", expected, expected)]
    made = np.concatenate([speech_of(spoken_by, request) for request in served.pool.requests[:2]])
    turn = made if rate == 48000 else soxr.resample(made, 48000, rate, quality="HQ")
    assert np.abs(audio(chunks, "<f4")[:expected] - turn[:expected]).max() < 1e-4


async def test_resampling_a_stream_equals_resampling_the_whole(served, spoken_by):
    output = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_F32LE, sample_rate_hz=16000)
    chunks = await served.generate(config(output=output), "One is. Two is. Three is.")
    check_numbers(chunks)
    made = np.concatenate([speech_of(spoken_by, request) for request in served.pool.requests])
    whole = soxr.resample(made, 48000, 16000, quality="HQ")
    got = audio(chunks, "<f4")
    assert len(got) == len(whole)
    assert np.abs(got - whole).max() < 1e-4
    positions = [at for _, _, _, at in events(chunks)]
    assert positions == sorted(positions)
    assert positions[-1] == len(whole)
    for chunk in chunks:
        for event in chunk.segment_events:
            if event.kind == STARTED:
                assert chunk.offset_samples <= event.at_samples < chunk.offset_samples + chunk.sample_count


async def test_wav_begins_with_one_header_even_without_audio(served):
    output = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_WAV)
    chunks = await served.generate(config(output=output), "One. Two.", pb.Flush(), "Three.")
    check_numbers(chunks)
    data = b"".join(c.audio for c in chunks)
    assert data[:4] == b"RIFF"
    assert len(data) == 44 + 2 * chunks[-1].summary.total_samples
    (empty,) = await served.generate(config(output=output))
    assert empty.audio[:4] == b"RIFF"
    assert empty.sample_count == 0


async def test_carry_conditions_on_the_speech_before(served):
    await served.generate(config(), "One. Two.  三。四。", pb.Flush(end_turn=True), "Five.")
    texts = [r.text for r in served.pool.requests]
    prompts = [r.conditioning.prompt.text if r.conditioning.prompt else None for r in served.pool.requests]
    assert texts == ["One.", " Two.", " 三。", "四。", " Five."]
    assert prompts == [None, "One.", "One. Two.", "One. Two. 三。", "One. Two. 三。四。"]
    last = served.pool.requests[-1].conditioning.prompt
    assert last.steps == 4 + 5 + 3 + 2
    assert all(r.keep_speech for r in served.pool.requests)


async def test_carry_keeps_whole_segments_within_its_limit(serve_front):
    async with serve_front(max_carry_seconds=12 * 0.02) as served:  # 12 patches of 20 ms
        await served.generate(config(), "Aa bb. Cc dd. Ee ff gg hh to. Yes. Do it. So.")
        prompts = [r.conditioning.prompt and r.conditioning.prompt.text for r in served.pool.requests]
        assert prompts == [
            None,
            "Aa bb.",  # the voice, which stays
            "Aa bb. Cc dd.",
            "Aa bb. Cc dd.",  # the third is too long to be carried at all
            "Aa bb. Cc dd. Yes.",
            "Aa bb. Yes. Do it.",
        ]


async def test_a_segment_cut_off_by_its_cap_is_not_carried(served):
    chunks = await served.generate(config(sampling={"max_steps": 8}), "A long sentence. Short.")
    assert [r.conditioning.prompt for r in served.pool.requests] == [None, None]
    assert served.pool.requests[1].conditioning.reference is not None  # but its timbre stays
    reasons = [e.finish_reason for c in chunks for e in c.segment_events if e.kind == FINISHED]
    assert reasons == [pb.FINISH_REASON_MAX_STEPS, pb.FINISH_REASON_COMPLETE]


async def test_independent_segments_are_submitted_one_ahead(served):
    timbre = pb.Latents(data=bytes(4 * 4 * 8), feat_dim=8)
    voice = pb.Conditioning(inline_reference=pb.InlineReference(latents=timbre))
    chunks = await served.generate(
        config(segmentation={"continuity": INDEPENDENT}, style="(a calm (old) voice)", conditioning=voice),
        "One. Two. Three.",
    )
    check_numbers(chunks)
    assert [(r.style, r.text) for r in served.pool.requests] == [
        ("a calm old voice", text) for text in ("One.", "Two.", "Three.")
    ]
    assert not any(r.conditioning.prompt or r.keep_speech for r in served.pool.requests)
    assert [(e[0], e[2]) for e in events(chunks)] == [
        (STARTED, 0),
        (FINISHED, 0),
        (STARTED, 1),
        (FINISHED, 1),
        (STARTED, 2),
        (FINISHED, 2),
    ]


async def test_only_the_first_segment_has_a_style_when_carried(served):
    await served.generate(config(style="sad"), "One. Two.", pb.Flush(end_turn=True), "Three.")
    assert [(r.style, r.text) for r in served.pool.requests] == [("sad", "One."), ("", " Two."), ("", " Three.")]


async def test_sampling_and_counters_reach_the_engine(served):
    sampling = {"cfg_value": 1.5, "temperature": 0.5, "inference_timesteps": 4, "min_steps": 1, "max_steps": 9}
    await served.generate(config(sampling=sampling), "One. Two.", pb.Flush(end_turn=True), "Three.")
    assert {r.sampling for r in served.pool.requests} == {Sampling(seed=7, steps_per_token=6.0, **sampling)}
    assert [(r.turn, r.segment) for r in served.pool.requests] == [(0, 0), (0, 1), (1, 0)]
    assert [r.continues for r in served.pool.requests] == [False, True, True]
    assert len({r.id for r in served.pool.requests}) == 3


async def test_audio_is_sent_while_text_still_arrives(served):
    call = served.stub.Generate()
    await call.write(pb.GenerateRequest(text="One is here. Two is here. Thr"))
    async for chunk in call:
        if chunk.sample_count:
            break
    await call.write(pb.GenerateRequest(text="ee."))
    await call.done_writing()
    rest = [chunk async for chunk in call]
    assert rest[-1].summary.segments == 3


async def read_until(call: Any, wanted: Any) -> list[pb.AudioChunk]:
    chunks = []
    while not wanted(chunks[-1] if chunks else pb.AudioChunk()):
        chunks.append(await asyncio.wait_for(call.read(), HANG_SECONDS))
    return chunks


async def rest_of(call: Any) -> list[pb.AudioChunk]:
    return (await read_until(call, lambda c: c is EOF))[:-1]


async def test_an_interrupt_ends_the_turn_and_the_next_one_works(serve_front, fake):
    async with serve_front(fake(hold_after=10)) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(config=config()))
        await call.write(pb.GenerateRequest(text="A sentence that is very long and goes on. Another one. More to"))
        chunks = await read_until(call, lambda c: c.offset_samples + c.sample_count > 5 * STEP)
        await call.write(pb.GenerateRequest(interrupt=pb.Interrupt(tag="stop")))
        chunks += await read_until(call, lambda c: c.HasField("interrupted"))
        answer = chunks[-1]
        assert (answer.interrupted.tag, answer.interrupted.sent_samples) == ("stop", answer.offset_samples)
        assert not answer.sample_count
        assert [(e.kind, e.text, e.at_samples, e.finish_reason) for e in answer.segment_events] == [
            (DROPPED, text, answer.offset_samples, pb.FINISH_REASON_INTERRUPTED)
            for text in ("A sentence that is very long and goes on.", "Another one.")
        ]
        assert not served.pool.running
        served.pool.release()
        await call.write(pb.GenerateRequest(text="Next turn."))
        await call.done_writing()
        rest = await rest_of(call)
        check_numbers(chunks + rest)
        assert {c.turn_index for c in rest if c.sample_count} == {1}
        assert sum(c.sample_count for c in rest) == 10 * STEP
        assert served.pool.requests[-1].conditioning.prompt is None  # the interrupted speech is not carried
        assert rest[-1].summary.finish_reason == pb.FINISH_REASON_COMPLETE
        assert rest[-1].summary.turns == 2
        await served.idle()


async def test_speech_before_an_interrupt_is_not_carried_and_is_reported_once(serve_front, fake):
    async with serve_front(fake(hold_after=30)) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(config=config()))
        await call.write(pb.GenerateRequest(text="First one. " + "Second one is so long that it cannot be over. " * 3))
        chunks = await read_until(call, lambda c: c.segment_index == 1 and c.sample_count)
        for _ in range(2):
            await call.write(pb.GenerateRequest(interrupt=pb.Interrupt()))
            chunks += await read_until(call, lambda c: c.HasField("interrupted"))
        served.pool.release()
        assert served.pool.requests[-1].conditioning.prompt is not None
        assert not chunks[-1].segment_events
        await call.write(pb.GenerateRequest(text="Anew."))
        await call.done_writing()
        check_numbers(chunks + await rest_of(call))
        assert served.pool.requests[-1].text == " Anew."
        assert served.pool.requests[-1].conditioning.prompt.text == "First one."  # it gives the voice


def test_an_interrupt_drops_audio_that_waits_for_a_slow_client(fake):
    pool, client, made = fake(), SlowClient(10), []
    text = Text("x" * 399 + ". More")  # the sentence has 8 s
    script = [text, 1.0, lambda: made.append(pool.steps), Interrupt("a"), 1.0, client.resume, Text("Anew.")]
    chunks = session(pool, script, client=client)
    check_numbers(chunks)
    (at,) = [index for index, chunk in enumerate(chunks) if chunk.HasField("interrupted")]
    sent = chunks[at].interrupted.sent_samples
    assert made == [400]
    assert 9 * STEP <= sent <= 10 * STEP + 48000 // 2  # what the client has read, and one message of 0.5 s
    assert [chunk.sample_count for chunk in chunks[at + 1 :] if chunk.sample_count] == [STEP] * len(" Anew.")


async def test_an_interrupt_drops_audio_inside_the_resampler(serve_front, fake, spoken_by):
    async with serve_front(fake(hold_after=20)) as served:
        call = served.stub.Generate()
        output = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_F32LE, sample_rate_hz=16000)
        await call.write(pb.GenerateRequest(config=config(output=output)))
        await call.write(pb.GenerateRequest(text="A sentence that is very long and goes on and on and on. Two. T"))
        await read_until(call, lambda c: c.offset_samples + c.sample_count > 1000)
        await call.write(pb.GenerateRequest(interrupt=pb.Interrupt()))
        await read_until(call, lambda c: c.HasField("interrupted"))
        served.pool.release()
        await call.write(pb.GenerateRequest(text="Next turn."))
        await call.done_writing()
        rest = await rest_of(call)
        alone = soxr.resample(speech_of(spoken_by, served.pool.requests[-1]), 48000, 16000, quality="HQ")
        assert np.abs(audio(rest, "<f4") - alone).max() < 1e-4


async def test_two_interrupts_before_any_text_are_answered(served):
    chunks = await served.generate(config(), pb.Interrupt(tag="a"), pb.Interrupt(tag="b"), "Hello there.")
    check_numbers(chunks)
    assert [c.interrupted.tag for c in chunks if c.HasField("interrupted")] == ["a", "b"]
    assert chunks[-1].summary.total_samples == 12 * STEP
    assert chunks[-1].summary.turns == 1


async def test_an_interrupt_drops_queued_text(served):
    chunks = await served.generate(config(segmentation={"mode": MANUAL}), "Never spoken", pb.Interrupt(), pb.Finish())
    check_numbers(chunks)
    assert chunks[-1].summary.total_samples == 0
    assert chunks[-1].summary.finish_reason == pb.FINISH_REASON_INTERRUPTED


async def test_an_interrupt_keeps_the_wav_header(serve_front, fake):
    async with serve_front(fake(step_seconds=0.001)) as served:
        output = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_WAV)
        chunks = await served.generate(config(output=output), "Dropped. ", pb.Flush(), pb.Interrupt(), "Spoken.")
        check_numbers(chunks)
        data = b"".join(c.audio for c in chunks)
        assert data[:4] == b"RIFF"
        assert len(data) == 44 + 2 * chunks[-1].summary.total_samples


async def test_a_cancelled_stream_frees_its_slot(serve_front, fake):
    async with serve_front(fake(hold_after=5)) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(config=config(segmentation={"continuity": INDEPENDENT})))
        await call.write(pb.GenerateRequest(text="One that is long. Two that is long. Three that is long."))
        await read_until(call, lambda c: c.sample_count)
        assert served.pool.running
        call.cancel()
        await served.idle()
        served.pool.release()
        await served.generate("Still serving.")


async def test_a_deadline_frees_the_slot(serve_front, fake):
    async with serve_front(fake(hold_after=1)) as served:
        code = await served.code_at_the_deadline("A sentence that takes a while.", seconds=0.3)
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        await served.idle()


async def test_the_wait_for_a_slot_is_bounded(serve_front, fake, details_of, monkeypatch):
    monkeypatch.setattr(slot_wait, "DEADLINE_SHARE", 0.1 / HANG_SECONDS)
    pool = fake()
    async with serve_front(pool) as served:
        for _ in range(4):
            await pool.slots.acquire()
        for options, limit in (({"max_queue_time": Duration(nanos=100_000_000)}, None), ({}, HANG_SECONDS)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await served.generate(config(**options), "Hello.", timeout=limit)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert details_of(caught.value).retry_seconds > 0
        assert not pool.waiting


async def test_too_many_streams_are_refused(serve_front, details_of):
    async with serve_front(max_streams=1) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(flush=pb.Flush()))
        await asyncio.wait_for(call.read(), HANG_SECONDS)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate("Hello.")
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details_of(caught.value).retry_seconds > 0
        await served.stub.GetModelInfo(pb.GetModelInfoRequest())
        await call.done_writing()
        assert (await rest_of(call))[-1].HasField("summary")
        await served.generate("Hello.")


async def test_a_client_that_does_not_read_holds_only_its_own_stream(serve_front, fake, spoken_by):
    async with serve_front(fake()) as served:
        lead = Duration(seconds=1)
        slow = served.stub.Generate()
        text = "x" * 399 + "."  # 8 s in each segment
        await slow.write(pb.GenerateRequest(config=config(pacing=pb.Pacing(max_lead=lead))))
        for _ in range(20):
            await slow.write(pb.GenerateRequest(text=text + " "))
        await slow.done_writing()
        await served.pool.stalled()
        assert 1 < len(served.pool.requests) < 20  # 15 MB in all, of which gRPC takes 6
        await served.generate("Other streams are not affected.")
        chunks = [chunk async for chunk in slow]
        check_numbers(chunks)
        assert chunks[-1].summary.total_samples == (20 * 400 + 19) * STEP


@pytest.mark.parametrize(
    ("steps", "failure", "code"),
    [
        (-1, Unavailable("gone", retry_after=1.0, reason=Reason.NO_ENGINE), grpc.StatusCode.UNAVAILABLE),
        (-1, Exhausted("full", retry_after=1.0, reason=Reason.QUEUE_FULL), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (2, Aborted("gone"), grpc.StatusCode.ABORTED),
        (-1, ValueError("/secret/path"), grpc.StatusCode.INTERNAL),
        (1, asyncio.CancelledError(), grpc.StatusCode.INTERNAL),
    ],
)
async def test_errors_of_the_engine_end_the_stream(served, details_of, steps, failure, code):
    served.pool.failures["Hello."] = steps, failure
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(config(request_id="mine"), "Hello.")
    assert caught.value.code() is code
    assert details_of(caught.value).request_id == "mine"
    assert "secret" not in str(caught.value.details())
    await served.idle()


async def test_an_engine_lost_between_segments_is_not_safe_to_retry(served):
    served.pool.step_seconds = 0.005
    served.pool.failures[" Two."] = -1, Unavailable("the engine was lost", retry_after=1.0)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(config(), "One. Two.")
    assert caught.value.code() is grpc.StatusCode.ABORTED


async def test_non_finite_audio_is_an_internal_error(served, monkeypatch):
    nan = np.full(STEP, np.nan, np.float32)
    import sys

    monkeypatch.setattr(sys.modules[type(served.pool).__module__], "speech", lambda request, step: nan)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate("Hello.")
    assert caught.value.code() is grpc.StatusCode.INTERNAL


def test_requests_are_values(spoken_by):
    assert len(spoken_by(Request(id="a", text="b"), 0)) == STEP
