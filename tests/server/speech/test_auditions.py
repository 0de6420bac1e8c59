"""Previews that speak, and auditions: texts that are spoken with a voice on the stream that stores it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest
from support.clients.decoding import decoded
from support.servers.uploads import (
    PROMPT,
    REFERENCE,
    add_prompt,
    add_reference,
    chunks_of,
    conditioned,
    recording,
    upload,
)
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.audio import AudioFormat, Encoding
from voxcpm_grpc.errors import QueueFull
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.wire.enums import ENCODINGS

INVALID = grpc.StatusCode.INVALID_ARGUMENT
FLOATS = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_F32LE)
STARTED, FINISHED = pb.SEGMENT_EVENT_KIND_STARTED, pb.SEGMENT_EVENT_KIND_FINISHED


def turn(style: str = "", **sampling: Any) -> pb.TurnConfig:
    return pb.TurnConfig(style=style, sampling=pb.Sampling(**sampling))


def synthesis(text: str = "", **fields: Any) -> pb.Preview:
    return pb.Preview(mode=pb.PREVIEW_MODE_SYNTHESIS, text=text, **fields)


def auditioned(**fields: Any) -> pb.Preview:
    return pb.Preview(auditions=True, **fields)


def audition(text: str, tag: str = "", settings: pb.TurnConfig | None = None) -> pb.AddReferenceRequest:
    return pb.AddReferenceRequest(audition=pb.Audition(text=text, tag=tag, turn=settings))


def reference(preview: pb.Preview, *auditions: pb.AddReferenceRequest, **options: Any) -> list[pb.AddReferenceRequest]:
    config = pb.AddReferenceConfig(preview=preview, options=pb.VoiceOptions(**options))
    return [*upload(pb.AddReferenceRequest, config, (0, recording())), *auditions]


def audio(chunks: list[pb.AudioChunk], of_turn: int | None = None) -> bytes:
    return b"".join(c.audio for c in chunks if of_turn is None or c.turn_index == of_turn)


def events(chunks: list[pb.AudioChunk]) -> list[tuple[int, int, str]]:
    return [(e.kind, e.turn_index, e.text) for c in chunks for e in c.segment_events]


def answers(chunks: list[pb.AudioChunk]) -> list[tuple[str, int]]:
    return [(c.flush_done.tag, c.flush_done.at_samples) for c in chunks if c.HasField("flush_done")]


async def outcome(call: Any) -> grpc.StatusCode:
    """The status of a call, whose messages are read first: it stands behind them."""
    async with asyncio.timeout(HANG_SECONDS):
        with suppress(grpc.aio.AioRpcError):
            while isinstance(await call.read(), pb.AudioChunk):
                pass
        return await call.code()


async def generated(served: Any, handle: pb.VoiceHandle, text: str, settings: pb.TurnConfig) -> bytes:
    """The audio of a Generate stream with the voice."""
    config = conditioned(voice=handle.id)
    config.turn.CopyFrom(settings)
    config.output.CopyFrom(FLOATS)
    return audio(await served.generate(config, text))


async def test_a_preview_speaks_its_text_with_the_new_voice(served):
    preview = synthesis("Hello there. And bye.", turn=turn("calm", seed=7), output=FLOATS)
    chunks = await chunks_of(served.stub.AddReference, reference(preview))
    handle, header, summary = chunks[0].handle, chunks[0].header, chunks[-1].summary
    assert handle.id and not chunks[0].audio
    assert (header.seed, header.voice, header.format.encoding) == (7, handle.id, pb.AUDIO_ENCODING_PCM_F32LE)
    assert [c.sequence for c in chunks] == list(range(len(chunks)))
    assert events(chunks) == [
        (STARTED, 0, "Hello there."),
        (FINISHED, 0, "Hello there."),
        (STARTED, 0, "And bye."),
        (FINISHED, 0, "And bye."),
    ]
    assert answers(chunks) == []
    assert audio(chunks) == await generated(served, handle, "Hello there. And bye.", turn("calm", seed=7))
    assert (summary.turns, summary.segments, summary.input_chars) == (1, 2, 21)
    assert summary.finish_reason == pb.FINISH_REASON_COMPLETE
    assert summary.total_samples == sum(c.sample_count for c in chunks) > 0


async def test_auditions_are_told_apart_and_sound_as_in_generate(served):
    preview = synthesis("First.", turn=turn(seed=3), output=FLOATS, auditions=True)
    asked = [audition("Second one. Of two.", "a"), audition("Third.", "b", turn("sad", seed=9, cfg_value=3.0))]
    chunks = await chunks_of(served.stub.AddReference, reference(preview, *asked))
    handle = chunks[0].handle
    assert [turn for kind, turn, _ in events(chunks) if kind == STARTED] == [0, 1, 1, 2]
    assert [tag for tag, _ in answers(chunks)] == ["a", "b"]
    for index, (text, settings) in enumerate(
        [("First.", turn(seed=3)), ("Second one. Of two.", turn(seed=3)), ("Third.", turn("sad", seed=9, cfg_value=3))]
    ):
        assert audio(chunks, index) == await generated(served, handle, text, settings), index
    ends = np.cumsum([sum(c.sample_count for c in chunks if c.turn_index == index) for index in range(3)])
    assert [at for _, at in answers(chunks)] == list(ends[1:])
    assert (chunks[-1].summary.turns, chunks[-1].summary.segments) == (3, 4)
    offsets = [c.offset_samples for c in chunks if c.audio]
    assert offsets == sorted(offsets)


@pytest.mark.parametrize("mode", [pb.PREVIEW_MODE_NONE, pb.PREVIEW_MODE_RECONSTRUCTION])
async def test_the_first_audition_is_turn_1_with_any_preview(served, mode):
    chunks = await chunks_of(served.stub.AddReference, reference(auditioned(mode=mode), audition("Hi.", "a")))
    assert bool(audio(chunks, 0)) == (mode == pb.PREVIEW_MODE_RECONSTRUCTION)
    assert audio(chunks, 1)
    assert [tag for tag, _ in answers(chunks)] == ["a"]


async def test_prompts_and_hifi_voices_are_auditioned_too(served):
    said = pb.Audition(text="Hello.", tag="x")
    prompt = [
        *upload(pb.AddPromptRequest, pb.AddPromptConfig(transcript="Hi.", preview=auditioned()), (0, recording())),
        pb.AddPromptRequest(audition=said),
    ]
    hifi = [
        *upload(
            pb.AddHifiRequest,
            pb.AddHifiConfig(
                uploaded_prompt=pb.UploadedPrompt(transcript="Hi."),
                uploaded_reference=pb.UploadedReference(),
                preview=auditioned(),
            ),
            (PROMPT, recording(0)),
            (REFERENCE, recording(1)),
        ),
        pb.AddHifiRequest(audition=said),
    ]
    for method, messages in ((served.stub.AddPrompt, prompt), (served.stub.AddHifi, hifi)):
        chunks = await chunks_of(method, messages)
        assert audio(chunks) and [tag for tag, _ in answers(chunks)] == ["x"]
        used = served.pool.requests[-1].conditioning
        assert used.prompt.text == "Hi." and (used.reference is None) == (method is served.stub.AddPrompt)


async def test_auditions_follow_each_other_for_as_long_as_the_client_sends_them(served):
    """The client reads each audition before it sends the next one, as a person who listens does."""
    call = served.stub.AddReference()
    for message in reference(auditioned()):
        await call.write(message)
    async with asyncio.timeout(HANG_SECONDS):
        handle = (await call.read()).handle
        assert (await served.stub.GetVoice(pb.GetVoiceRequest(id=handle.id))).handle.id == handle.id
        for tag in "abc":
            await call.write(audition(f"Say {tag}.", tag))
            while (chunk := await call.read()).flush_done.tag != tag:
                assert not chunk.HasField("summary")
        await call.done_writing()
        assert (await call.read()).summary.turns == 3
        assert await call.code() is grpc.StatusCode.OK


async def test_a_stream_that_announces_no_auditions_ends_while_the_client_keeps_its_side_open(served):
    for preview in (pb.Preview(), synthesis("Hello.")):
        call = served.stub.AddReference()
        for message in reference(preview):
            await call.write(message)
        assert await outcome(call) is grpc.StatusCode.OK


async def test_a_stream_without_auditions_for_long_ends_as_idle(serve_front):
    async with serve_front(stream_idle_seconds=0.2) as served:
        call = served.stub.AddReference()
        for message in reference(auditioned()):
            await call.write(message)
        async with asyncio.timeout(HANG_SECONDS):
            chunks = [chunk async for chunk in call]
        assert chunks[-1].summary.finish_reason == pb.FINISH_REASON_IDLE
        assert chunks[0].handle.id


@pytest.mark.parametrize("number", ENCODINGS, ids=[str(encoding) for encoding in ENCODINGS.values()])
async def test_preview_and_auditions_are_one_file_in_every_encoding(served, number):
    preview = synthesis("Hello there.", output=pb.AudioFormat(encoding=number), auditions=True)
    chunks = await chunks_of(served.stub.AddReference, reference(preview, audition("Bye.", "a"), audition("Oh.", "b")))
    header, summary = chunks[0].header, chunks[-1].summary
    assert header.format.encoding == number
    assert all(audio(chunks, index) for index in range(3))
    assert (summary.total_samples, summary.total_bytes) == (sum(c.sample_count for c in chunks), len(audio(chunks)))
    if ENCODINGS[number] in (Encoding.PCM_S16LE, Encoding.PCM_F32LE):
        width = 2 if ENCODINGS[number] == Encoding.PCM_S16LE else 4
        assert len(audio(chunks)) == width * summary.total_samples
        return
    rate = header.format.sample_rate_hz
    samples, decoded_rate = decoded(audio(chunks), AudioFormat(ENCODINGS[number], rate))
    stated = header.codec_delay_samples + summary.total_samples + summary.codec_padding_samples
    assert len(samples) == stated * decoded_rate // rate


@pytest.mark.parametrize(
    ("preview", "field", "text"),
    [
        (pb.Preview(text="Hi."), "config.preview.text", "the mode is NONE, which says no text"),
        (pb.Preview(mode=pb.PREVIEW_MODE_RECONSTRUCTION, text="Hi."), "config.preview.text", "RECONSTRUCTION"),
        (synthesis("?!"), "config.preview.text", "nothing to speak"),
        (synthesis("x" * 101), "config.preview.text", "has 101 characters and the limit is 100"),
        (synthesis(turn=turn(cfg_value=99)), "config.preview.turn.sampling.cfg_value", "99"),
        (synthesis(turn=turn("x" * 501)), "config.preview.turn.style", "501 characters"),
        (synthesis(output=pb.AudioFormat(sample_rate_hz=7)), "config.preview.output.sample_rate_hz", "7"),
        (auditioned(turn=turn(temperature=9)), "config.preview.turn.sampling.temperature", "9"),
    ],
)
async def test_a_preview_that_cannot_be_is_refused_before_anything_is_stored(
    serve_front, details_of, preview, field, text
):
    async with serve_front(max_text_chars=100) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await chunks_of(served.stub.AddReference, reference(preview))
        assert (caught.value.code(), details_of(caught.value).field) == (INVALID, field)
        assert text in str(caught.value.details())
        assert not list(served.directory.iterdir())


@pytest.mark.parametrize(
    ("said", "field", "text"),
    [
        (pb.Audition(), "audition.text", "nothing to speak"),
        (pb.Audition(text=" ?! "), "audition.text", "nothing to speak"),
        (pb.Audition(text="x" * 101), "audition.text", "has 101 characters and the limit is 100"),
        (pb.Audition(text="Hi.", tag="t" * 129), "audition.tag", "129 characters"),
        (pb.Audition(text="Hi.", turn=turn(max_steps=0)), "audition.turn.sampling.max_steps", "max_steps"),
    ],
)
async def test_a_bad_audition_ends_the_stream_and_keeps_the_voice(serve_front, details_of, said, field, text):
    """The audition arrives with the commit, before the voice is made."""
    async with serve_front(max_text_chars=100) as served:
        call = served.stub.AddReference(
            iter(reference(auditioned(), audition("Good one.", "a"), pb.AddReferenceRequest(audition=said)))
        )
        chunks = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for chunk in call:
                chunks.append(chunk)
        assert (caught.value.code(), details_of(caught.value).field) == (INVALID, field)
        assert text in str(caught.value.details())
        assert [tag for tag, _ in answers(chunks)] == ["a"]
        stored = await served.stub.GetVoice(pb.GetVoiceRequest(id=chunks[0].handle.id))
        assert stored.handle.id == chunks[0].handle.id


async def test_a_style_with_a_prompt_is_refused(served, details_of):
    for preview, said, field in (
        (synthesis("Hi.", turn=turn("sad")), pb.Audition(text="Hi."), "config.preview.turn.style"),
        (auditioned(), pb.Audition(text="Hi.", turn=turn("sad")), "audition.turn.style"),
    ):
        config = pb.AddPromptConfig(transcript="Hi.", preview=preview)
        messages = [
            *upload(pb.AddPromptRequest, config, (0, recording())),
            *([pb.AddPromptRequest(audition=said)] if preview.auditions else []),
        ]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await chunks_of(served.stub.AddPrompt, messages)
        assert (caught.value.code(), details_of(caught.value).field) == (INVALID, field)


async def test_an_audition_at_the_wrong_place_is_refused(served, details_of):
    config, *parts, commit = reference(auditioned())
    plain = reference(pb.Preview())
    hello = audition("Hello.")
    for messages, field, text in (
        ([hello], "config", "must be its config"),
        ([config, hello], "audition", "before the commit"),
        ([config, *parts, hello, commit], "audition", "before the commit"),
        ([*plain, hello], "audition", "preview.auditions"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await chunks_of(served.stub.AddReference, messages)
        assert (caught.value.code(), details_of(caught.value).field) == (INVALID, field)
        assert text in str(caught.value.details())
        assert not list(served.directory.iterdir())


@pytest.mark.parametrize(("index", "field"), [(0, "config"), (1, "audio"), (-1, "commit")])
async def test_nothing_but_auditions_may_follow_the_commit(served, details_of, index, field):
    messages = reference(auditioned())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await chunks_of(served.stub.AddReference, [*messages, messages[index]])
    assert (caught.value.code(), details_of(caught.value).field) == (INVALID, field)
    assert "arrived after the commit" in str(caught.value.details())


async def test_a_full_queue_refuses_an_audition_and_keeps_the_voice(serve_front, fake):
    """Before audio the status is RESOURCE_EXHAUSTED with a time to retry, after audio ABORTED, as in Generate."""
    pool = fake(failures={"Full.": (-1, QueueFull(8, 8))})
    async with serve_front(pool) as served:
        for before, code in (((), grpc.StatusCode.RESOURCE_EXHAUSTED), (("Good.",), grpc.StatusCode.ABORTED)):
            call = served.stub.AddReference(
                iter(reference(auditioned(), *(audition(text) for text in (*before, "Full."))))
            )
            handle = (await call.read()).handle
            assert await outcome(call) is code
            assert (await served.stub.GetVoice(pb.GetVoiceRequest(id=handle.id))).handle.id == handle.id


async def test_a_cancelled_audition_stops_at_the_next_step(serve_front, fake):
    pool = fake(step_seconds=0.001)
    async with serve_front(pool) as served:
        call = served.stub.AddReference()
        for message in reference(auditioned(), audition("A very long sentence that never ends " * 8 + ".")):
            await call.write(message)
        async with asyncio.timeout(HANG_SECONDS):
            handle = (await call.read()).handle
            while not (await call.read()).audio:
                pass
        assert pool.running
        call.cancel()
        await served.idle()
        assert (await served.stub.GetVoice(pb.GetVoiceRequest(id=handle.id))).handle.id == handle.id


async def test_an_audition_waits_for_a_client_that_does_not_read(serve_front, fake):
    """The server makes no more audio than the client may hold back."""
    async with serve_front(fake(), max_lead_seconds=0.1) as served:
        call = served.stub.AddReference()
        sentences = " ".join(["X" + "x" * 380 + "."] * 8)  # more audio than HTTP/2 holds
        for message in reference(auditioned(output=FLOATS), audition(sentences)):
            await call.write(message)
        await until(lambda: served.pool.steps > 0)
        await served.pool.stalled()
        assert 0 < served.pool.steps < len(sentences)
        await call.done_writing()
        async with asyncio.timeout(HANG_SECONDS):
            chunks = [chunk async for chunk in call]
        assert chunks[-1].summary.generated_steps == len(sentences)


async def test_auditions_count_against_the_quota_of_text(serve_front):
    async with serve_front(max_chars_per_minute_per_caller=60) as served:
        chunks = await chunks_of(served.stub.AddReference, reference(auditioned(), audition("x" * 70 + ".")))
        assert chunks[-1].summary.input_chars == 71
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await chunks_of(served.stub.AddReference, reference(synthesis("Hello.")))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "quota of text" in str(caught.value.details())


async def test_an_audition_is_refused_at_a_deadline_that_it_cannot_meet(serve_front, fake):
    pool = fake(slots=asyncio.Semaphore(0))
    async with serve_front(pool, max_queue_seconds=0.2) as served:
        call = served.stub.AddReference(iter(reference(auditioned(), audition("Hello."))))
        handle = (await call.read()).handle
        assert await outcome(call) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "no slot became free within 0.2 s" in await call.details()
        assert (await served.stub.GetVoice(pb.GetVoiceRequest(id=handle.id))).handle.id == handle.id


async def test_uploads_that_wait_for_auditions_hold_no_recording(served):
    call = served.stub.AddReference()
    for message in reference(auditioned()):
        await call.write(message)
    assert (await asyncio.wait_for(call.read(), HANG_SECONDS)).handle.id
    assert served.uploads.held == 0
    call.cancel()
    await served.idle()


async def test_the_default_text_is_in_the_script_of_the_transcript(served):
    async def said(transcript: str) -> str:
        config = pb.AddPromptConfig(transcript=transcript, preview=synthesis())
        chunks = await chunks_of(served.stub.AddPrompt, upload(pb.AddPromptRequest, config, (0, recording())))
        return " ".join(text for kind, _, text in events(chunks) if kind == STARTED)

    assert (await said("Hi there.")).startswith("Hello")
    assert (await said("Привет, мир.")).startswith("Здрав")
    assert (await said("你好，世界。")).startswith("你好")
    assert (await said("Γεια σας.")).startswith("Γεια")
    assert (await said("東京は晴れです。")).startswith("こんにちは")
    assert (await said("서울은 맑습니다.")).startswith("안녕")
    chunks = await chunks_of(served.stub.AddReference, reference(synthesis()))
    assert events(chunks)[0][2].startswith("Hello")


async def test_a_preview_repeats_with_its_seed(served):
    preview = synthesis("Hello.", turn=turn(seed=5))
    first, second = [await chunks_of(served.stub.AddReference, reference(preview)) for _ in range(2)]
    assert audio(first) == audio(second)
    assert not first[0].handle.reused and second[0].handle.reused
    drawn = await chunks_of(served.stub.AddReference, reference(synthesis("Hello.")))
    again = await chunks_of(
        served.stub.AddReference, reference(synthesis("Hello.", turn=turn(seed=drawn[0].header.seed)))
    )
    assert audio(drawn) == audio(again)


async def test_voices_without_speech_have_a_header_as_before(served):
    await add_prompt(served)
    await add_reference(served)
    chunks = await chunks_of(served.stub.AddReference, reference(pb.Preview()))
    assert (chunks[0].header.seed, chunks[0].header.voice) == (0, "")
    assert chunks[-1].summary.turns == 0
