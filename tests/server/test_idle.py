"""A stream whose client says nothing, and for which nothing is left to say, makes room for another."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from voxcpm_grpc.v1 import tts_pb2 as pb

IDLE = pb.FINISH_REASON_IDLE
MANUAL = pb.GenerateConfig(segmentation=pb.Segmentation(mode=pb.SEGMENTATION_MODE_MANUAL))
SECONDS = 0.3


def message(sent: Any) -> pb.GenerateRequest:
    kinds = {
        str: "text",
        pb.GenerateConfig: "config",
        pb.Flush: "flush",
        pb.Interrupt: "interrupt",
        pb.Finish: "finish",
    }
    return pb.GenerateRequest(**{kinds[type(sent)]: sent})


async def rest_of(call: Any) -> list[pb.AudioChunk]:
    chunks = []
    async with asyncio.timeout(10):
        while (chunk := await call.read()) is not grpc.aio.EOF:
            chunks.append(chunk)
    return chunks


def samples(chunks: list[pb.AudioChunk]) -> int:
    return sum(chunk.sample_count for chunk in chunks) // 960  # one step for each character


@pytest.mark.parametrize(
    ("sent", "spoken"),
    [
        ([], 0),
        ([pb.GenerateConfig()], 0),
        ([MANUAL, ""], 0),
        (["..."], 0),
        (["One is here. Two"], 16),
        ([MANUAL, "One. Two"], 8),
        (["One.", pb.Flush(end_turn=True)], 4),
        (["Dropped", pb.Interrupt()], 0),
        (["One.", pb.Flush(), "Dropped", pb.Interrupt(), "Anew"], None),
    ],
)
async def test_a_silent_stream_speaks_what_waits_and_ends(serve_front, sent, spoken):
    async with serve_front(stream_idle_seconds=SECONDS, max_streams=1) as served:
        call = served.stub.Generate()
        for one in sent:
            await call.write(message(one))
        chunks = await rest_of(call)
        assert await call.code() is grpc.StatusCode.OK
        assert chunks[-1].summary.finish_reason == IDLE
        assert [chunk.HasField("summary") for chunk in chunks] == [*[False] * (len(chunks) - 1), True]
        if spoken is not None:
            assert samples(chunks) == spoken
        await served.idle()
        again = await served.generate("The door is open.")
        assert again[-1].summary.finish_reason == pb.FINISH_REASON_COMPLETE


async def test_any_message_is_a_sign_of_life(serve_front):
    async with serve_front(stream_idle_seconds=SECONDS) as served:
        call = served.stub.Generate()
        loop = asyncio.get_running_loop()
        began = loop.time()
        for one in (pb.GenerateConfig(), "One", " more", pb.Flush(), "", pb.Interrupt(), "Three"):
            await call.write(message(one))
            await asyncio.sleep(0.4 * SECONDS)
        chunks = await rest_of(call)
        assert loop.time() - began > 3 * SECONDS
        assert samples(chunks) == len("One more" + " Three")
        assert chunks[-1].summary.finish_reason == IDLE


@pytest.mark.parametrize("continuity", [pb.CONTINUITY_MODE_CARRY, pb.CONTINUITY_MODE_INDEPENDENT])
async def test_a_stream_that_is_spoken_is_not_idle(serve_front, fake, continuity):
    async with serve_front(fake(step_seconds=0.05), stream_idle_seconds=SECONDS) as served:
        call = served.stub.Generate()
        config = pb.GenerateConfig(segmentation=pb.Segmentation(continuity=continuity))
        await call.write(message(config))
        await call.write(message("Some twenty letters. Some twenty letters. "))  # 2 s
        await call.write(message(pb.Flush()))
        while not (await asyncio.wait_for(call.read(), 5)).HasField("flush_done"):
            pass
        await call.write(message("And more."))
        await call.done_writing()
        chunks = await rest_of(call)
        assert samples(chunks) >= len("And more.")
        assert chunks[-1].summary.finish_reason == pb.FINISH_REASON_COMPLETE


async def test_a_stream_that_waits_for_a_slot_is_not_idle(serve_front, fake):
    pool = fake()
    async with serve_front(pool, stream_idle_seconds=SECONDS) as served:
        for _ in range(4):
            await pool.slots.acquire()
        call = served.stub.Generate()
        await call.write(message("One is here."))
        await call.write(message(pb.Flush()))
        await asyncio.sleep(3 * SECONDS)
        await call.write(message("And more."))
        await call.done_writing()
        pool.slots.release()
        chunks = await rest_of(call)
        assert samples(chunks) == len("One is here.") + len("And more.")
        assert chunks[-1].summary.finish_reason == pb.FINISH_REASON_COMPLETE


@pytest.mark.parametrize("segments", [4, 12])  # what is left fits behind the writer, or holds up the speaker too
async def test_a_stream_whose_reader_is_slow_is_not_idle(serve_front, segments):
    async with serve_front(stream_idle_seconds=SECONDS) as served:
        call = served.stub.Generate()
        output = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_F32LE)
        await call.write(message(pb.GenerateConfig(output=output)))
        for _ in range(segments):
            await call.write(message("x" * 399 + ". "))  # 8 s, 1.5 MB, of which gRPC takes 4
        await call.write(message(pb.Flush()))
        await asyncio.sleep(1 + 3 * SECONDS)
        await call.write(message("And more."))
        await call.done_writing()
        chunks = await rest_of(call)
        assert samples(chunks) == 401 * segments - 1 + len(" And more.")
        assert chunks[-1].summary.finish_reason == pb.FINISH_REASON_COMPLETE


async def test_the_client_says_that_its_session_was_idle(serve_front):
    from voxcpm_client import AsyncClient, Cancelled

    async with (
        serve_front(stream_idle_seconds=SECONDS) as served,
        AsyncClient(served.address, timeout=20) as client,
        client.session() as session,
    ):
        await session.send_text("One is here")
        speech = await session.speech()
        assert speech.summary is not None
        assert speech.summary.finish_reason == "idle"
        assert len(speech.samples) == 960 * len("One is here")
        with pytest.raises(Cancelled):
            await session.send_text("Too late.")
