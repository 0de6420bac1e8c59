"""python speak.py ADDRESS VOICE FILE PIECE... : the dialogue of test_dialogues.py, whose outcome it prints as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO

from gen.voxcpm_grpc.v1 import (
    AudioChunk,
    Conditioning,
    GenerateConfig,
    GenerateRequest,
    Interrupt,
    Sampling,
    TurnConfig,
    VoxCpmServiceStub,
)
from google.rpc.error_details_pb2 import BadRequest, RequestInfo  # with these imported, grpclib decodes the details
from grpclib.client import Channel
from grpclib.exceptions import GRPCError


def requests(config: GenerateConfig, *texts: str) -> list[GenerateRequest]:
    return [GenerateRequest(config=config), *(GenerateRequest(text=text) for text in texts)]


async def failure(client: VoxCpmServiceStub, config: GenerateConfig) -> GRPCError:
    try:
        async for _ in client.generate(requests(config)):
            pass
    except GRPCError as error:
        return error
    raise AssertionError("the call ended with OK")


def detail(error: GRPCError, kind: type) -> Any:
    return next(one for one in error.details or () if isinstance(one, kind))


async def main(address: str, voice: str, audio: BinaryIO, *pieces: str) -> None:
    host, port = address.rsplit(":", 1)
    async with Channel(host, int(port)) as channel:
        client, conditioning = VoxCpmServiceStub(channel), Conditioning(voice=voice)
        spoken = requests(GenerateConfig(conditioning=conditioning), *pieces)
        chunks = [chunk async for chunk in client.generate(spoken)]
        audio.write(b"".join(chunk.audio for chunk in chunks))
        header, summary = chunks[0].header, chunks[-1].summary
        assert header is not None and summary is not None
        outcome: dict[str, Any] = {"seed": str(header.seed), "samples": summary.total_samples}

        largest = TurnConfig(sampling=Sampling(seed=2**63 - 1))
        async for chunk in client.generate(requests(GenerateConfig(conditioning=conditioning, turn=largest))):
            if chunk.header:
                outcome["largest_seed"] = str(chunk.header.seed)

        queue: asyncio.Queue[GenerateRequest | None] = asyncio.Queue()

        async def given() -> AsyncIterator[GenerateRequest]:
            while (request := await queue.get()) is not None:
                yield request

        for request in requests(GenerateConfig(conditioning=conditioning), f"{''.join(pieces)} " * 20):
            queue.put_nowait(request)
        heard = False
        replies: AsyncIterator[AudioChunk] = client.generate(given())
        async for chunk in replies:
            if chunk.audio and not heard:
                heard = True
                queue.put_nowait(GenerateRequest(interrupt=Interrupt(tag="stop", played_samples=0)))
            if chunk.interrupted:
                outcome["tag"] = chunk.interrupted.tag
                for request in (*(GenerateRequest(text=piece) for piece in pieces), None):
                    queue.put_nowait(request)
            if chunk.summary:
                outcome["turns"] = chunk.summary.turns

        nobody = GenerateConfig(request_id="dialogue", conditioning=Conditioning(voice="nobody"))
        missing = await failure(client, nobody)
        outcome["code"] = missing.status.value
        outcome["request_id"] = detail(missing, RequestInfo).request_id
        refused = await failure(client, GenerateConfig(turn=TurnConfig(sampling=Sampling(cfg_value=99))))
        outcome["field"] = detail(refused, BadRequest).field_violations[0].field
        print(json.dumps(outcome))


with Path(sys.argv[3]).open("wb") as file:
    asyncio.run(main(sys.argv[1], sys.argv[2], file, *sys.argv[4:]))
