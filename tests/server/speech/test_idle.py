"""The idle timeout ends a stream when its client sends nothing and all of its text is spoken.

Most tests run a session on a fake clock with messages in memory, so a slow host cannot make it idle.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from support.clients.grpc_types import EOF
from support.servers.sessions import IDLE_SECONDS, SlowClient, session
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values.inputs import Continuity, Flush, GenerateInput, Interrupt, SegmentationMode, Text

COMPLETE, IDLE = pb.FINISH_REASON_COMPLETE, pb.FINISH_REASON_IDLE
MANUAL, SENTENCE = SegmentationMode.MANUAL, SegmentationMode.SENTENCE


def outcome(pool: Any, *script: Any, **options: Any) -> tuple[int, int]:
    """The number of spoken characters, and the reason of the end."""
    sent = session(pool, script, **options)
    assert [message.HasField("summary") for message in sent] == [*[False] * (len(sent) - 1), True]
    return sum(message.sample_count for message in sent) // 960, sent[-1].summary.finish_reason


@pytest.mark.parametrize(
    ("script", "mode", "spoken"),
    [
        ([], SENTENCE, 0),
        ([Text("")], MANUAL, 0),
        ([Text("...")], SENTENCE, 0),
        ([Text("One is here. Two")], SENTENCE, 16),
        ([Text("One. Two")], MANUAL, 8),
        ([Text("One."), Flush("", True)], SENTENCE, 4),
        ([Text("Dropped"), Interrupt("")], SENTENCE, 0),
        ([Text("One."), Flush("", False), 1.0, Text("Dropped"), Interrupt(""), Text("Anew")], SENTENCE, 9),
    ],
)
def test_an_idle_stream_speaks_its_waiting_text_and_ends(fake, script, mode, spoken):
    assert outcome(fake(), *script, mode=mode, ends=False) == (spoken, IDLE)


def test_any_message_restarts_the_timeout(fake):
    messages = [Text("One"), Text(" more"), Flush("", False), Text(""), Interrupt(""), Text("Three")]
    pauses = [0.9 * IDLE_SECONDS] * len(messages)
    script = [one for pair in zip(messages, pauses, strict=True) for one in pair]
    assert outcome(fake(), *script, ends=False) == (len("One more" + " Three"), IDLE)


@pytest.mark.parametrize("continuity", Continuity)
def test_a_stream_is_not_idle_while_it_speaks(fake, continuity):
    pool = fake(step_seconds=IDLE_SECONDS / 8)
    text = "Some twenty letters. Some twenty letters. "
    script = [Text(text), Flush("", False), 5.2 * IDLE_SECONDS, Text("And more.")]
    assert outcome(pool, *script, continuity=continuity)[1] == COMPLETE


def test_a_stream_is_not_idle_while_it_waits_for_a_slot(fake):
    pool = fake(slots=asyncio.Semaphore(0))
    texts = ["One is here.", "And more."]
    script = [Text(texts[0]), Flush("", False), 3 * IDLE_SECONDS, pool.slots.release, Text(texts[1])]
    assert outcome(pool, *script) == (len("".join(texts)), COMPLETE)


@pytest.mark.parametrize("segments", [2, 12])  # the waiting audio fits into the output queue, or blocks the speaker too
def test_a_stream_with_a_slow_client_is_not_idle(fake, segments):
    client = SlowClient(1)
    text: list[GenerateInput] = [Text("x" * 399 + ". ")] * segments  # 8 s each
    script = [*text, Flush("", False), 3 * IDLE_SECONDS, client.resume, Text("And more.")]
    spoken = 401 * segments - 1 + len(" And more.")
    assert outcome(fake(), *script, client=client, max_lead=60.0) == (spoken, COMPLETE)


# ---- through a real channel


async def test_an_idle_stream_ends_with_a_summary_and_frees_its_place(serve_front):
    async with serve_front(stream_idle_seconds=1, max_streams=1) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(text="One is here. Two"))
        chunks = []
        async with asyncio.timeout(HANG_SECONDS):
            while (chunk := await call.read()) is not EOF:
                chunks.append(chunk)
        assert await call.code() is grpc.StatusCode.OK
        assert chunks[-1].summary.finish_reason == IDLE
        await served.idle()
        again = await served.generate("There is room.")
        assert again[-1].summary.finish_reason == COMPLETE


async def test_the_client_reports_an_idle_session(serve_front):
    from voxcpm_client import AsyncClient, Cancelled

    async with (
        serve_front(stream_idle_seconds=1) as served,
        AsyncClient(served.address, timeout=HANG_SECONDS) as client,
        client.session() as session,
    ):
        await session.send_text("One is here")
        speech = await session.speech()
        assert speech.summary is not None
        assert speech.summary.finish_reason == "idle"
        assert len(speech.samples) == 960 * len("One is here")
        with pytest.raises(Cancelled):
            await session.send_text("Too late.")
