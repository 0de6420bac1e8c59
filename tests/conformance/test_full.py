"""A server that is full refuses at once, with the number, the limit and the time to wait before a retry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from support.servers.guarded_servers import (
    MAX_OF_CALLER,
    MAX_OF_CONNECTION,
    MAX_STREAMS,
    MAX_UPLOAD_BYTES,
    MAX_UPLOAD_BYTES_OF_CALLER,
    MAX_VOICES,
    MAX_VOICES_OF_CALLER,
)
from support.servers.targets import Service, Target, config, message, refusal
from support.servers.uploads import tone, upload
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb

Callers = dict[str, Target]
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
LONG = "A sentence that goes on and on, as it has nothing better to do, and tells of this and that and of more, "


async def check_full(call: Any, *texts: str, pushback: bool = True) -> None:
    """The refusal names numbers and limit, and says when to try again."""
    code, text, details = await refusal(call)
    assert code is FULL, (code, text)
    for part in texts:
        assert part in text
    assert details.request_id and not details.bad_request
    assert details.retry_seconds is not None and details.retry_seconds > 0
    assert details.pushback_ms == round(1000 * details.retry_seconds)


async def opened(service: Service) -> Any:
    """A stream that has sent its header, and stays open."""
    call = service.Generate()
    for body in (config(), "Hello there. "):
        await call.write(message(body))
    assert (await call.read()).HasField("header")
    return call


@asynccontextmanager
async def connections(*targets: Target) -> AsyncIterator[Sequence[Service]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(target.service()) for target in targets]


async def until_open(service: Service) -> None:
    """Return when the server admits a stream of this caller again."""
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            try:
                return (await opened(service)).cancel()
            except grpc.aio.AioRpcError as error:
                assert error.code() is FULL


async def test_streams_beyond_the_limits_are_refused(callers: Callers) -> None:
    a, b = callers["a"], callers["b"]
    async with connections(a, a, b, b) as (first, second, third, fourth):
        calls = [await opened(first) for _ in range(MAX_OF_CONNECTION)]
        await check_full(first.speak("Hello."), f"this connection has {MAX_OF_CONNECTION}", "the limit is")
        calls.append(await opened(second))
        await check_full(second.speak("Hello."), f"this caller has {MAX_OF_CALLER}", "open streams and the limit")
        calls.append(await opened(third))
        assert len(calls) == MAX_STREAMS
        await check_full(fourth.speak("Hello."), f"{MAX_STREAMS} streams are open", f"the limit is {MAX_STREAMS}")
        assert await fourth.GetModelInfo(pb.GetModelInfoRequest()), "a full server answers questions"
        for call in calls:
            call.cancel()
        await until_open(fourth)
        await until_open(first)


def parts(size: int) -> list[pb.AddReferenceRequest]:
    """An upload of this many bytes that is not complete."""
    data = pb.AudioPart(data=bytes(size))
    return [pb.AddReferenceRequest(config=pb.AddReferenceConfig()), pb.AddReferenceRequest(audio=data)]


@pytest.mark.references
async def test_recordings_beyond_the_limits_are_refused(callers: Callers) -> None:
    size = 45_000
    assert size < MAX_UPLOAD_BYTES_OF_CALLER < 2 * size < MAX_UPLOAD_BYTES < 2 * size + tone_size()
    async with connections(callers["a"], callers["b"], callers["operator"]) as (a, b, operator):
        held = [await hold(a, size)]
        await check_full(a.stream("AddReference", parts(size)), "uploads of this caller hold", str(size))
        held.append(await hold(b, size))
        await check_full(operator.stream("AddReference", parts(tone_size())), "uploads hold", str(MAX_UPLOAD_BYTES))
        code, text, details = await refusal(a.stream("AddReference", parts(MAX_UPLOAD_BYTES_OF_CALLER + 1)))
        assert (code, details.field) == (grpc.StatusCode.INVALID_ARGUMENT, "audio.data"), text
        for call in held:
            call.cancel()


async def hold(service: Service, size: int) -> Any:
    """An upload of this many bytes that the server counts, and that does not end."""
    call = service.AddReference()
    for each in parts(size):
        await call.write(each)
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            try:
                await service.stream("AddReference", parts(size))
            except grpc.aio.AioRpcError as error:
                if error.code() is FULL:
                    return call


def tone_size() -> int:
    return len(tone())


@pytest.mark.references
async def test_voices_beyond_the_limits_are_refused(callers: Callers) -> None:
    async def add(service: Service) -> str:
        messages = upload(pb.AddReferenceRequest, pb.AddReferenceConfig(), (0, tone()))
        return (await service.stream("AddReference", messages))[0].handle.id

    async with connections(callers["a"], callers["b"]) as (a, b):
        made = [(a, await add(a)) for _ in range(MAX_VOICES_OF_CALLER)]
        try:
            await check_full(add(a), f"this caller has {MAX_VOICES_OF_CALLER} stored voices and the limit")
            made += [(b, await add(b)) for _ in range(MAX_VOICES - MAX_VOICES_OF_CALLER)]
            await check_full(add(b), f"the store has room for {MAX_VOICES} voices")
        finally:
            for service, id in made:
                await service.DeleteVoice(pb.DeleteVoiceRequest(id=id))
        made = [(b, await add(b))]
        await b.DeleteVoice(pb.DeleteVoiceRequest(id=made[0][1]))


async def test_requests_beyond_slots_and_queue_are_refused(callers: Callers) -> None:
    """One stream has the slot for seconds, another one waits for it, and there is no room for a third.

    The others are batch requests: an interactive one gets the slot as soon as the listener of the stream has seconds of
    audio left, which depends on the speed of the host. The audio of the stream is small, so that the stream does not
    wait for its reader. No call has a deadline: a slow server would refuse it, as the wait for the slot is estimated.
    """
    telephone = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_MULAW, sample_rate_hz=8000)
    async with connections(callers["a"], callers["a"], callers["b"]) as (holder, first, second):
        call = holder.Generate(timeout=None)
        for body in (config(5000, output=telephone), LONG * 3, pb.Flush()):
            await call.write(message(body))
        while not (await call.read()).sample_count:
            pass
        reading = asyncio.create_task(read_on(call))
        impatient = config(max_queue_time=Duration(nanos=100_000_000), priority=pb.PRIORITY_BATCH)
        await check_full(second.speak(impatient, "Hello.", seconds=None), "no slot became free within 0.1 s")
        patient = config(priority=pb.PRIORITY_BATCH)
        ends = [service.speak(patient, "Hello.", seconds=None) for service in (first, second)]
        speaking = {asyncio.create_task(end) for end in ends}
        (refused,), (waiting,) = await asyncio.wait(speaking, return_when=asyncio.FIRST_COMPLETED)
        await check_full(refused, "all slots are in use and 1 requests wait, the limit is 1")
        call.cancel()
        await asyncio.wait({reading})
        assert (await waiting)[-1].summary.total_samples


async def read_on(call: Any) -> None:
    while isinstance(await call.read(), pb.AudioChunk):
        pass
