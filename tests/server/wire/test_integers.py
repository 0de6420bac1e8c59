"""Integers in replies fit a double, so that every language reads them exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from support.servers.operated import operated
from support.servers.uploads import upload

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.v1 import tts_pb2 as pb

MAX_EXACT = 2**53 - 1  # of a double, Number.MAX_SAFE_INTEGER in JavaScript
INT64 = {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}
STREAMS = 12  # seeds of 63 bits pass the limit in all but one of 1,024


def integers(message: Message) -> Iterator[tuple[str, int]]:
    """The integers of 64 bits in a message, with the names of their fields."""
    for field, value in message.ListFields():
        many: Any = value if field.is_repeated else [value]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue  # no map has integers of 64 bits
        for one in many:
            if isinstance(one, Message):
                yield from integers(one)
            elif field.cpp_type in INT64:
                yield field.full_name, one


def check(*messages: Message) -> set[str]:
    """The names of the fields that were found."""
    found = [pair for message in messages for pair in integers(message)]
    assert [pair for pair in found if not -MAX_EXACT <= pair[1] <= MAX_EXACT] == []
    return {name.removeprefix("voxcpm_grpc.v1.") for name, _ in found}


async def test_replies_have_no_larger_integer(served):
    recording = wav_bytes(np.random.default_rng(0).uniform(-0.5, 0.5, 16000).astype(np.float32), 16000)
    config = pb.AddReferenceConfig(preview=pb.Preview(mode=pb.PREVIEW_MODE_SYNTHESIS, text="Hello."))
    found: set[str] = set()
    for _ in range(STREAMS):
        found |= check(*await served.generate("Hello there."))
        found |= check(
            *[
                one
                async for one in served.stub.AddReference(iter(upload(pb.AddReferenceRequest, config, (0, recording))))
            ]
        )
    found |= check(await served.stub.GetModelInfo(pb.GetModelInfoRequest()))
    assert {
        "StreamHeader.seed",
        "StreamSummary.total_samples",
        "AudioChunk.sequence",
        "Limits.max_upload_bytes",
    } <= found


async def test_statistics_have_no_larger_integer(tmp_path):
    async with operated(tmp_path) as server:
        async for _ in server.speak("Hello.", steps=3):
            pass
        stats = await server.stats_when(lambda stats: stats.recent.calls)
        assert {"FrontStats.resident_bytes", "EngineStats.kv_positions"} <= check(stats)


async def test_a_larger_seed_of_the_caller_comes_back(served):
    for seed in (MAX_EXACT + 1, 2**63 - 1):
        sampling = pb.Sampling(seed=seed)
        chunks = await served.generate(pb.GenerateConfig(turn=pb.TurnConfig(sampling=sampling)), "Hello.")
        assert chunks[0].header.seed == seed
