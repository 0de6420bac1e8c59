"""Normalised text reaches the model; positions and flow stay those of the caller's text. The rules have a suite."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from support.clients.grpc_types import EOF

from voxcpm_grpc.errors import Unavailable
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.text.normalize import packages

STARTED, FINISHED = pb.SEGMENT_EVENT_KIND_STARTED, pb.SEGMENT_EVENT_KIND_FINISHED


class Digits:
    """Writes the digits 1 to 3 out, after a turn of the loop."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def normalize(self, text: str, language: str = "") -> str:
        self.texts.append((text, language))
        await self.gate.wait()
        if text == "lost 1":
            raise Unavailable("the process that normalises text was stopped twice")
        if text.startswith("code"):
            return "..."
        for digit, word in ((1, "one"), (2, "two"), (3, "three")):
            text = text.replace(str(digit), word)
        return text


@pytest.fixture
def digits(monkeypatch):
    monkeypatch.setattr(packages, "_missing", list)
    return Digits()


NORMALIZED = pb.TurnConfig(normalize=True)


def config(**fields: Any) -> pb.GenerateConfig:
    return pb.GenerateConfig(turn=NORMALIZED, **fields)


async def test_the_model_gets_words_and_events_count_the_callers_text(serve_front, digits):
    async with serve_front(normalizer=digits, lexicon={"two": "1"}) as served:
        chunks = await served.generate(config(), "I have 3", " cats. You have two. ", pb.Flush(), "None.")
        started = [e for c in chunks for e in c.segment_events if e.kind == STARTED]
        assert [(e.text, e.input_start, e.input_end) for e in started] == [
            ("I have three cats.", 0, 15),
            ("You have one.", 15, 29),
            ("None.", 29, 34),
        ]
        second = served.pool.requests[1]
        assert (second.text, second.conditioning.prompt.text) == (" You have one.", "I have three cats.")
        assert chunks[-1].summary.input_chars == 34


@pytest.mark.parametrize("continuity", [pb.CONTINUITY_MODE_CARRY, pb.CONTINUITY_MODE_INDEPENDENT])
async def test_normalize_belongs_to_the_turn(serve_front, digits, continuity):
    async with serve_front(normalizer=digits) as served:
        segmentation = pb.Segmentation(continuity=continuity, language="en-GB")
        end = pb.Flush(end_turn=True)
        plain = pb.TurnConfig()
        await served.generate(
            config(segmentation=segmentation),
            "I see 1 cat. I see 1 dog.",
            end,
            plain,
            "Two is 2.",
            end,
            NORMALIZED,
            "It is 3.",
        )
        texts = [request.text.strip() for request in served.pool.requests]
        assert texts == ["I see one cat.", "I see one dog.", "Two is 2.", "It is three."]
        assert {language for _, language in digits.texts} == {"en"}
        assert len(digits.texts) == 3


def events_of(chunks: list[pb.AudioChunk]) -> list[tuple[str, int, int, int]]:
    return [
        (event.text, event.input_start, event.input_end, event.finish_reason)
        for chunk in chunks
        for event in chunk.segment_events
        if event.kind == FINISHED
    ]


@pytest.mark.parametrize("text", ["code 1", "```sh\ncode 1\n```", "<think>One is 1.</think>", "![code](1.png)"])
@pytest.mark.parametrize("continuity", [pb.CONTINUITY_MODE_CARRY, pb.CONTINUITY_MODE_INDEPENDENT])
async def test_a_segment_with_nothing_to_say_is_silent_and_reported(serve_front, digits, text, continuity):
    async with serve_front(normalizer=digits) as served:
        segmentation = pb.Segmentation(continuity=continuity)
        chunks = await served.generate(config(segmentation=segmentation), text, pb.Flush(tag="f"))
        assert not served.pool.requests
        assert events_of(chunks) == [("", 0, len(text), pb.FINISH_REASON_NOTHING_TO_SAY)]
        assert not any(event.kind == STARTED for chunk in chunks for event in chunk.segment_events)
        assert [chunk.flush_done.tag for chunk in chunks if chunk.HasField("flush_done")] == ["f"]
        summary = chunks[-1].summary
        assert (summary.finish_reason, summary.total_samples) == (pb.FINISH_REASON_NOTHING_TO_SAY, 0)
        assert (summary.segments, summary.input_chars, summary.turns) == (0, len(text), 1)


@pytest.mark.parametrize("continuity", [pb.CONTINUITY_MODE_CARRY, pb.CONTINUITY_MODE_INDEPENDENT])
async def test_silent_segments_keep_their_place_between_others(serve_front, digits, continuity):
    async with serve_front(normalizer=digits) as served:
        parts = ("One is 1.\n", "```\ncode\n```\n", "Two is 2.\n", "\ncode 3.\n", "\n**Three** is [3](http://x.y).")
        segmentation = pb.Segmentation(continuity=continuity)
        chunks = await served.generate(config(segmentation=segmentation), "".join(parts))
        assert [request.text.strip() for request in served.pool.requests] == [
            "One is one.",
            "Two is two.",
            "Three is three.",
        ]
        ends = [0, *(len("".join(parts[:count])) for count in range(1, 6))]
        complete, silent = pb.FINISH_REASON_COMPLETE, pb.FINISH_REASON_NOTHING_TO_SAY
        assert events_of(chunks) == [
            ("One is one.", ends[0], ends[1], complete),
            ("", ends[1], ends[2], silent),
            ("Two is two.", ends[2], ends[3], complete),
            ("", ends[3], ends[4], silent),
            ("Three is three.", ends[4], ends[5], complete),
        ]
        events = [event for chunk in chunks for event in chunk.segment_events]
        assert [event.segment_index for event in events if event.kind == FINISHED] == [0, 1, 2, 3, 4]
        assert chunks[-1].summary.finish_reason == complete


async def test_without_normalize_markup_is_the_callers_text(serve_front, digits):
    async with serve_front(normalizer=digits) as served:
        await served.generate(pb.GenerateConfig(), "**Bold** and `code`.")
        assert served.pool.requests[0].text == "**Bold** and `code`."


async def test_an_interrupt_does_not_wait_for_the_normalisation(serve_front, digits):
    digits.gate.clear()
    async with serve_front(normalizer=digits) as served:
        async with asyncio.timeout(60):
            call = served.stub.Generate()
            for message in (pb.GenerateRequest(config=config()), pb.GenerateRequest(text="One is 1.")):
                await call.write(message)
            await call.write(pb.GenerateRequest(flush=pb.Flush(tag="f")))
            await call.write(pb.GenerateRequest(interrupt=pb.Interrupt(tag="i")))
            while not (chunk := await call.read()).HasField("interrupted"):
                pass
        assert list(chunk.interrupted.dropped_flush_tags) == ["f"]
        assert not served.pool.requests
        digits.gate.set()
        await call.write(pb.GenerateRequest(text="Two is 2."))
        await call.done_writing()
        while await call.read() is not EOF:
            pass
        assert [request.text.strip() for request in served.pool.requests] == ["Two is two."]


async def test_a_lost_process_can_be_retried_before_the_first_audio(serve_front, digits):
    async with serve_front(normalizer=digits) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate(config(), "lost 1")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await served.idle()


async def test_a_lost_process_ends_a_stream_that_has_sent_audio(serve_front, digits):
    async with serve_front(normalizer=digits) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(config=config()))
        await call.write(pb.GenerateRequest(text="One is 1."))
        await call.write(pb.GenerateRequest(flush=pb.Flush()))
        while not (await call.read()).sample_count:
            pass
        await call.write(pb.GenerateRequest(text="lost 1"))
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while isinstance(await call.read(), pb.AudioChunk):
                pass
        assert caught.value.code() is grpc.StatusCode.ABORTED
        await served.idle()


async def test_without_the_packages_normalize_is_refused(served, details_of, monkeypatch):
    monkeypatch.setattr(packages, "_missing", lambda: ["inflect", "regex"])
    for messages in ([config()], ["One.", NORMALIZED]):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate(*messages)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "inflect, regex are missing, which normalise text" in str(caught.value.details())
        assert "voxcpm-grpc[normalize]" in str(caught.value.details())
        assert not details_of(caught.value).field
