"""A pause of the text completes a sentence that looks complete."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from support.clients.grpc_types import EOF
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb

STARTED = pb.SEGMENT_EVENT_KIND_STARTED


def config(wait: float | None = None, **segmentation: Any) -> pb.GenerateRequest:
    if wait is not None:
        duration = Duration()
        duration.FromMicroseconds(round(wait * 1e6))
        segmentation["max_wait"] = duration
    return pb.GenerateRequest(config=pb.GenerateConfig(segmentation=pb.Segmentation(**segmentation)))


async def started(call: Any) -> pb.SegmentEvent:
    """The start of the next segment."""
    async with asyncio.timeout(HANG_SECONDS):
        while (chunk := await call.read()) is not EOF:
            for event in chunk.segment_events:
                if event.kind == STARTED:
                    return event
    raise AssertionError("the stream ended without another segment")


async def rest_of(call: Any) -> list[pb.SegmentEvent]:
    """End the stream and return the starts of all further segments."""
    await call.done_writing()
    events = []
    async with asyncio.timeout(HANG_SECONDS):
        while (chunk := await call.read()) is not EOF:
            events += [event for event in chunk.segment_events if event.kind == STARTED]
    return events


def cuts(*events: pb.SegmentEvent) -> list[tuple[str, int]]:
    return [(event.text, event.cut_reason) for event in events]


@pytest.mark.parametrize("text", ["Let me check that for you.", "Let me check that for you. ", "我来看一下。"])
async def test_a_complete_sentence_is_spoken_without_more_text(served, text):
    call = served.stub.Generate()
    await call.write(pb.GenerateRequest(text=text))
    assert cuts(await started(call)) == [(text.strip(), pb.CUT_REASON_PAUSE)]
    await call.write(pb.GenerateRequest(text=" It is here. "))
    assert cuts(await started(call)) == [("It is here.", pb.CUT_REASON_PAUSE)]
    assert not await rest_of(call)


@pytest.mark.parametrize("text", ["It costs $3.", "Of course,", "Well...", "Ask Dr.", "One is"])
async def test_a_doubtful_or_unfinished_sentence_is_spoken_after_a_longer_pause(served, text):
    call = served.stub.Generate()
    await call.write(config(wait=0.01))
    await call.write(pb.GenerateRequest(text=text))
    assert cuts(await started(call)) == [(text, pb.CUT_REASON_PAUSE)]


@pytest.mark.parametrize(
    ("first", "rest"), [("It costs $3.", "5 today."), ("Visit example.", "com today."), ("One is", " here")]
)
async def test_a_pause_shorter_than_the_longer_wait_cuts_nothing(served, first, rest):
    call = served.stub.Generate()
    await call.write(config(wait=HANG_SECONDS / 5))
    await call.write(pb.GenerateRequest(text=first))
    await call.write(pb.GenerateRequest(text=rest))
    assert cuts(*await rest_of(call)) == [(first + rest, pb.CUT_REASON_FLUSH)]


async def test_the_pause_counts_from_the_last_message(served, monkeypatch):
    call = served.stub.Generate()
    await call.write(config(wait=1000.0))
    await call.write(pb.GenerateRequest(text="One is here."))
    for _ in range(20):
        await call.write(pb.GenerateRequest(text=""))
    assert cuts(*await rest_of(call)) == [("One is here.", pb.CUT_REASON_FLUSH)]


@pytest.mark.parametrize("options", [{"wait": 0.0}, {"wait": 0.001, "mode": pb.SEGMENTATION_MODE_MANUAL}])
async def test_without_a_wait_segments_depend_on_the_text_alone(served, options):
    call = served.stub.Generate()
    await call.write(config(**options))
    await call.write(pb.GenerateRequest(text="One is here. "))
    await asyncio.sleep(0.05)
    await call.write(pb.GenerateRequest(text="or there."))
    assert cuts(*await rest_of(call)) == [("One is here. or there.", pb.CUT_REASON_FLUSH)]


async def test_flushes_and_turns_work_after_a_pause(served):
    call = served.stub.Generate()
    await call.write(config(wait=0.3))  # a busy host may hold the second part of the sentence back
    for turn, tag in enumerate(("a", "b", "c")):
        await call.write(pb.GenerateRequest(text="One is here. Two"))
        assert cuts(await started(call)) == [("One is here.", pb.CUT_REASON_SENTENCE)]
        await call.write(pb.GenerateRequest(text="."))
        event = await started(call)
        assert (event.text, event.turn_index, event.cut_reason) == ("Two.", turn, pb.CUT_REASON_PAUSE)
        await call.write(pb.GenerateRequest(flush=pb.Flush(tag=tag, end_turn=True)))
        async with asyncio.timeout(HANG_SECONDS):
            while not (chunk := await call.read()).HasField("flush_done"):
                pass
        assert chunk.flush_done.tag == tag
    assert not await rest_of(call)


async def test_the_summary_has_the_times_from_the_text_and_from_the_sentence(served):
    call = served.stub.Generate()
    await call.write(config(wait=0.2))
    await call.write(pb.GenerateRequest(text="One is here."))
    await call.done_writing()
    async with asyncio.timeout(HANG_SECONDS):
        chunks = [chunk async for chunk in call]
    first = chunks[-1].summary
    assert first.text_to_first_audio.ToNanoseconds() >= first.time_to_first_audio.ToNanoseconds() > 0

    call = served.stub.Generate()
    await call.write(config(wait=0.2))
    await call.write(pb.GenerateRequest(text="One is here."))
    await started(call)
    await call.done_writing()
    async with asyncio.timeout(HANG_SECONDS):
        while not (chunk := await call.read()).HasField("summary"):
            pass
    waited = chunk.summary.text_to_first_audio.ToNanoseconds() - chunk.summary.time_to_first_audio.ToNanoseconds()
    assert waited >= 0.2e9  # the pause


@pytest.mark.parametrize(
    ("segmentation", "field"),
    [
        (pb.Segmentation(max_wait=Duration(seconds=-1)), "config.segmentation.max_wait"),
        (pb.Segmentation(language="not a tag"), "config.segmentation.language"),
        (pb.Segmentation(language="de" + "-x" * 40), "config.segmentation.language"),
        (pb.Segmentation(first_segment=cast(pb.FirstSegment, 9)), "config.segmentation.first_segment"),
    ],
)
async def test_wrong_options_name_their_field(served, details_of, segmentation, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(pb.GenerateConfig(segmentation=segmentation), "Hello.")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details_of(caught.value).field == field


async def test_eager_streams_begin_with_a_clause(served):
    chunks = await served.generate(
        pb.GenerateConfig(segmentation=pb.Segmentation(first_segment=pb.FIRST_SEGMENT_EAGER)),
        "When the rain has gone, we walk by the river. As I said, no.",
    )
    events = [event for chunk in chunks for event in chunk.segment_events if event.kind == STARTED]
    assert cuts(*events) == [
        ("When the rain has gone,", pb.CUT_REASON_CLAUSE),
        ("we walk by the river.", pb.CUT_REASON_SENTENCE),
        ("As I said, no.", pb.CUT_REASON_FLUSH),
    ]
