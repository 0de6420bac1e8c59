"""SEGMENTATION_MODE_TOKENS with tiny checkpoints of Qwen3-TTS, whose tokens are parts of words and of characters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import numpy as np
import pytest
from support.clients.grpc_types import EOF
from support.engines.killable_engines import KillableEngines, pool_over
from support.engines.qwen3 import engine
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.v1 import tts_pb2 as pb

TEXT = "One (e.g. cafe\u0301) 北京的天气很好 sells.\r\nAll 12 of 한국 bark. "
RATE = 24_000
FINISHED = pb.SEGMENT_EVENT_KIND_FINISHED


class Engines(KillableEngines):
    """Engines of a variant in this process."""

    def __init__(self, names: str, variant: str) -> None:
        self.made: list[Engine] = []
        self._variant = variant
        super().__init__(names, self._new)

    def _new(self) -> Engine:
        self.made.append(engine(self._variant))
        return self.made[-1]


@asynccontextmanager
async def qwen_pool(variant: str, names: str = "a") -> AsyncIterator[tuple[EnginePool, Engines]]:
    async with pool_over(Engines(names, variant)) as running_pool:
        yield running_pool


def config(**sampling: int) -> pb.GenerateConfig:
    turn = pb.TurnConfig(sampling=pb.Sampling(**{"seed": 4, "max_steps": 30, **sampling}))
    segmentation = pb.Segmentation(mode=pb.SEGMENTATION_MODE_TOKENS)
    made = pb.GenerateConfig(turn=turn, segmentation=segmentation)
    made.trim_leading_silence.SetInParent()
    return made


def audio(chunks: Sequence[pb.AudioChunk]) -> bytes:
    return b"".join(chunk.audio for chunk in chunks)


def finished(chunks: Sequence[pb.AudioChunk]) -> list[pb.SegmentEvent]:
    return [event for chunk in chunks for event in chunk.segment_events if event.kind == FINISHED]


@pytest.mark.parametrize(
    ("variant", "sampling"),
    [("custom17", {}), ("design", {"max_steps": 7, "min_steps": 7})],
    ids=["read", "unread"],
)
async def test_every_division_of_a_text_gives_the_same_audio(serve_front, variant, sampling):
    async with qwen_pool(variant) as (pool, _), serve_front(pool) as served:
        whole = await served.generate(config(**sampling), TEXT)
        assert finished(whole)[0].input_start == 0 and finished(whole)[-1].input_end == len(TEXT)
        assert len(finished(whole)) > (3 if sampling.get("max_steps") else 0)
        cuts = [0, *(TEXT.index(part) for part in ("g. c", "\u0301", "天气")), len(TEXT)]
        for parts in ([*TEXT], [TEXT[start:end] for start, end in pairwise(cuts)]):
            chunks = await served.generate(config(**sampling), *parts)
            assert audio(chunks) == audio(whole)
            assert [event.text for event in finished(chunks)] == [event.text for event in finished(whole)]


async def test_a_cloned_voice_reads_text_behind_its_transcript(serve_front):
    """Its speech begins when the text is as long as the recording."""
    async with qwen_pool("base06") as (pool, _), serve_front(pool) as served:
        first = config(min_steps=12, max_steps=12)
        prompt = first.conditioning.inline_prompt
        prompt.audio.data = (0.3 * np.sin(np.arange(RATE // 2) ** 1.3 / 90)).astype("<f4").tobytes()
        prompt.audio.format.encoding, prompt.audio.format.sample_rate_hz = pb.AUDIO_ENCODING_PCM_F32LE, RATE
        prompt.transcript = "Hello."
        whole = await served.generate(first, "One is here and goes on.", pb.Flush(), " Two.")
        parts = await served.generate(first, *"One is here and goes on.", pb.Flush(), *" Two.")
        assert audio(parts) == audio(whole)
        texts = [event.text for event in finished(whole)]
        assert texts == [event.text for event in finished(parts)]
        assert " ".join(texts).replace(" ", "") == "Oneishereandgoeson.Two."


async def test_speech_begins_when_two_words_are_certain(serve_front):
    async with qwen_pool("custom17") as (pool, engines), serve_front(pool) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(config=config(min_steps=20)))
        await call.write(pb.GenerateRequest(text="Hello big "))
        chunks = []
        async with asyncio.timeout(HANG_SECONDS):
            while not (chunks and chunks[-1].audio):
                chunks.append(await call.read())
        await until(lambda: not engines.made[0].busy)
        made = engines.made[0].stats().chunks
        assert 0 < made < 20  # the rest waits for text, and takes no step
        await call.write(pb.GenerateRequest(text="world."))
        await call.done_writing()
        while (chunk := await call.read()) is not EOF:
            chunks.append(chunk)
        whole = await served.generate(config(min_steps=20), "Hello big world.")
        assert audio(chunks) == audio(whole)


async def test_another_engine_goes_on_with_the_text_so_far(serve_front):
    async with qwen_pool("custom17", "ab") as (pool, engines), serve_front(pool) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(config=config(min_steps=30)))
        chunks = []
        words = TEXT.split(" ")
        for word in words[:4]:
            await call.write(pb.GenerateRequest(text=word + " "))
        async with asyncio.timeout(HANG_SECONDS):
            while not (chunks and chunks[-1].audio):
                chunks.append(await call.read())
        [home] = [replica for replica in pool.replicas if replica.calls]
        engines.kill(home.name)
        for word in words[4:]:
            await call.write(pb.GenerateRequest(text=word + " "))
        await call.done_writing()
        while (chunk := await call.read()) is not EOF:
            chunks.append(chunk)
        assert chunks[-1].summary.continuations == 1
        whole = await served.generate(config(min_steps=30), TEXT)
        one, other = (np.frombuffer(audio(each), "<i2").astype(int) for each in (chunks, whole))
        assert len(one) == len(other) and np.abs(one - other).max() <= 1  # the codec computes its memory again
