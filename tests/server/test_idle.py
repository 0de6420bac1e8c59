"""The idle timeout ends a stream when its client sends nothing and all of its text is spoken.

Most tests run a session on a fake clock with messages in memory, so a slow host cannot make it idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from support.made_up_time import run
from support.waiting import HANG_SECONDS

from voxcpm_grpc.audio import AudioFormat, Encoding
from voxcpm_grpc.request import Conditioning, Sampling
from voxcpm_grpc.settings.schema import LimitSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.speech.session import Session
from voxcpm_server.wire.inputs import (
    Continuity,
    Flush,
    GenerateConfig,
    GenerateInput,
    Interrupt,
    Segmentation,
    SegmentationMode,
    Text,
    VoiceChoice,
)

IDLE = pb.FINISH_REASON_IDLE
IDLE_SECONDS = 10.0
MANUAL, SENTENCE = SegmentationMode.MANUAL, SegmentationMode.SENTENCE

Script = Sequence[GenerateInput | float]


async def _messages(script: Script, ends: bool) -> AsyncIterator[GenerateInput]:
    """The messages of a script, with its pauses in seconds. Then the stream ends, or stays open without messages."""
    for one in script:
        if isinstance(one, float):
            await asyncio.sleep(one)
        else:
            yield one
    if not ends:
        await asyncio.Event().wait()


async def _run_session(
    pool: Any, script: Script, mode: SegmentationMode, continuity: Continuity, ends: bool
) -> list[pb.AudioChunk]:
    sent: list[pb.AudioChunk] = []

    async def send(message: pb.AudioChunk) -> None:
        sent.append(message)

    async def encode(samples: np.ndarray) -> np.ndarray:
        return np.zeros((1, 4, 8), np.float32)

    config = GenerateConfig(
        voice=VoiceChoice(),
        sampling=Sampling(),
        style="",
        output=AudioFormat(Encoding.PCM_S16LE, 48000),
        segmentation=Segmentation(mode=mode, max_wait=0),
        continuity=continuity,
        max_lead=1000.0,
        max_queue=1000.0,
    )
    session = Session(
        config,
        Conditioning(),
        "",
        pool=pool,
        encode=encode,
        limits=LimitSettings(max_text_chars=1000, max_carry_seconds=20.0, stream_idle_seconds=IDLE_SECONDS),
        request_id="",
        remaining=lambda: None,
        send=send,
    )
    asyncio.get_running_loop().call_later(100 * IDLE_SECONDS, lambda: None)  # keeps the clock running until the timeout
    async with asyncio.timeout(90 * IDLE_SECONDS):
        await session.run(None, _messages(script, ends))
    return sent


def outcome(
    pool: Any,
    *script: GenerateInput | float,
    mode: SegmentationMode = SENTENCE,
    continuity: Continuity = Continuity.CARRY,
    ends: bool = False,
) -> tuple[int, int]:
    """The number of spoken characters, and the reason of the end."""
    sent = run(_run_session(pool, script, mode, continuity, ends))
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
    assert outcome(fake(), *script, mode=mode) == (spoken, IDLE)


def test_any_message_restarts_the_timeout(fake):
    messages = [Text("One"), Text(" more"), Flush("", False), Text(""), Interrupt(""), Text("Three")]
    pauses = [0.9 * IDLE_SECONDS] * len(messages)
    script = [one for pair in zip(messages, pauses, strict=True) for one in pair]
    assert outcome(fake(), *script) == (len("One more" + " Three"), IDLE)


@pytest.mark.parametrize("continuity", Continuity)
def test_a_stream_is_not_idle_while_it_speaks(fake, continuity):
    pool = fake(step_seconds=IDLE_SECONDS / 8)
    text = "Some twenty letters. Some twenty letters. "
    script = [Text(text), Flush("", False), 5.2 * IDLE_SECONDS, Text("And more.")]
    assert outcome(pool, *script, continuity=continuity, ends=True)[1] == pb.FINISH_REASON_COMPLETE


def test_a_stream_is_not_idle_while_it_waits_for_a_slot(fake):
    pool = fake(slots=asyncio.Semaphore(0))

    async def scenario() -> list[pb.AudioChunk]:
        asyncio.get_running_loop().call_later(5 * IDLE_SECONDS, pool.slots.release)
        script = [Text("One is here."), Flush("", False), 3 * IDLE_SECONDS, Text("And more.")]
        return await _run_session(pool, script, SENTENCE, Continuity.CARRY, True)

    sent = run(scenario())
    assert sum(message.sample_count for message in sent) // 960 == len("One is here." + "And more.")
    assert sent[-1].summary.finish_reason == pb.FINISH_REASON_COMPLETE


# ---- through a real channel


async def test_an_idle_stream_ends_with_a_summary_and_frees_its_place(serve_front):
    async with serve_front(stream_idle_seconds=1, max_streams=1) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(text="One is here. Two"))
        chunks = []
        async with asyncio.timeout(HANG_SECONDS):
            while (chunk := await call.read()) is not grpc.aio.EOF:
                chunks.append(chunk)
        assert await call.code() is grpc.StatusCode.OK
        assert chunks[-1].summary.finish_reason == IDLE
        await served.idle()
        again = await served.generate("There is room.")
        assert again[-1].summary.finish_reason == pb.FINISH_REASON_COMPLETE


@pytest.mark.parametrize("segments", [4, 12])  # the waiting audio fits into the output queue, or blocks the speaker too
async def test_a_stream_with_a_slow_reader_is_not_idle(serve_front, segments):
    seconds = 1.0
    async with serve_front(stream_idle_seconds=seconds) as served:
        call = served.stub.Generate()
        output = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_F32LE)
        await call.write(pb.GenerateRequest(config=pb.GenerateConfig(output=output)))
        for _ in range(segments):
            await call.write(pb.GenerateRequest(text="x" * 399 + ". "))  # 8 s, 1.5 MB, of which gRPC takes 4
        await call.write(pb.GenerateRequest(flush=pb.Flush()))
        await served.pool.stalled()
        await asyncio.sleep(3 * seconds)
        await call.write(pb.GenerateRequest(text="And more."))
        await call.done_writing()
        async with asyncio.timeout(HANG_SECONDS):
            chunks = [chunk async for chunk in call]
        assert sum(chunk.sample_count for chunk in chunks) // 960 == 401 * segments - 1 + len(" And more.")
        assert chunks[-1].summary.finish_reason == pb.FINISH_REASON_COMPLETE


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
