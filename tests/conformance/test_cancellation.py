"""A stream that ends early frees its slot and its pages at the next step, and a thousand of them leave nothing behind.

The figures are those of the admin service (`--admin`), on a server that nobody else uses.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc
import pytest
from support.hostile.abrupt_client import abrupt_client
from support.servers.admin_stats import Admin, Usage
from support.servers.targets import Service, Target, config, message
from support.servers.uploads import upload
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb

TEXT = "A sentence that goes on and on, as it has nothing better to do, and tells of this and that. " * 20
CANCELS, AT_ONCE = 1000, 16
MEMORY_BYTES = 16 << 20  # of noise: buffers that gRPC and the allocator keep


async def cancel(call: Any, target: Target) -> None:
    call.cancel()


async def expire(call: Any, target: Target) -> None:
    """Read until the deadline."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        while isinstance(await call.read(), pb.AudioChunk):
            pass
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def speaking(service: Service, seconds: float = HANG_SECONDS) -> Any:
    """A stream that has sent audio and goes on for long."""
    call = service.Generate(timeout=seconds)
    for body in (config(500), TEXT):
        await call.write(message(body))
    while not (await call.read()).sample_count:
        pass
    return call


async def seen_speaking(service: Service, admin: Admin, seconds: float) -> tuple[Any, Usage] | None:
    """As `speaking`, with the usage meanwhile; None if the deadline passes earlier."""
    try:
        call = await speaking(service, seconds)
        busy = await admin.usage()
    except (grpc.aio.AioRpcError, AttributeError):
        return None
    return (call, busy) if busy.calls else None


@pytest.mark.parametrize(("end", "deadlines"), [(cancel, (HANG_SECONDS,)), (expire, (5.0, 20.0, 80.0))])
async def test_a_stream_that_ends_early_frees_its_slot(
    target: Target,
    service: Service,
    admin: Admin,
    end: Callable[[Any, Target], Awaitable[None]],
    deadlines: Sequence[float],
) -> None:
    before, found = await admin.usage(), None
    for seconds in deadlines:  # until one leaves time for the statistics
        if found := await seen_speaking(service, admin, seconds):
            break
        await check_free(admin, before)
    assert found
    call, busy = found
    assert (busy.calls, busy.slots) == (1, 1) and busy.pages > before.pages
    await end(call, target)
    await check_free(admin, before)


@pytest.mark.prompts
async def test_an_audition_that_ends_early_frees_its_slot_and_leaves_the_voice(
    target: Target, service: Service, admin: Admin, recording: bytes
) -> None:
    before = await admin.usage()
    options = target.options_of_voice()
    settings = pb.AddPromptConfig(transcript="A tone. ", options=options, preview=pb.Preview(auditions=True))
    call = service.AddPrompt()
    for body in upload(pb.AddPromptRequest, settings, (0, recording)):
        await call.write(body)
    await call.write(pb.AddPromptRequest(audition=pb.Audition(text=TEXT, turn=config(500).turn)))
    handle = (await call.read()).handle
    while not (await call.read()).sample_count:
        pass
    busy = await admin.usage()
    assert (busy.calls, busy.slots, busy.upload_bytes) == (1, 1, 0)
    call.cancel()
    await check_free(admin, before)
    assert (await service.GetVoice(pb.GetVoiceRequest(id=handle.id))).handle.id == handle.id
    await service.DeleteVoice(pb.DeleteVoiceRequest(id=handle.id))


async def check_free(admin: Admin, before: Usage) -> None:
    """As soon as the call has ended, the statistics that an engine gives after its current step show no trace of it."""
    await admin.until(lambda usage: not usage.calls)
    after = await admin.usage()
    assert (after.slots, after.requests, after.pages) == (before.slots, before.requests, before.pages)


@pytest.mark.parametrize("how", ["closed", "killed"])
async def test_a_stream_whose_client_is_lost_frees_its_slot(target: Target, admin: Admin, how: str) -> None:
    before = await admin.usage()
    if how == "killed":
        with abrupt_client("speak", target, uuid.uuid4().hex):
            await admin.until(lambda usage: usage.slots == 1)
    else:
        async with target.service() as service:
            await speaking(service)
    await check_free(admin, before)


@pytest.mark.prompts
async def test_an_upload_whose_client_is_killed_frees_its_memory(target: Target, admin: Admin) -> None:
    with abrupt_client("upload", target, uuid.uuid4().hex):
        assert (await admin.until(lambda usage: usage.upload_bytes > 0)).uploads == 1
    await admin.until(lambda usage: not usage.calls)
    assert (await admin.usage()).upload_bytes == 0


async def test_an_interrupt_frees_the_slot_of_its_stream(service: Service, admin: Admin) -> None:
    before = await admin.usage()
    call = await speaking(service)
    await call.write(message(pb.Interrupt(tag="stop")))
    while (await call.read()).interrupted.tag != "stop":
        pass
    after = await admin.usage()
    assert (after.calls, after.slots, after.requests, after.pages) == (1, 0, 0, before.pages)
    await call.write(message("Hello."))
    await call.done_writing()
    while not (chunk := await call.read()).HasField("summary"):
        pass
    assert chunk.summary.turns == 2


async def cancel_somewhere(service: Service, rng: random.Random) -> None:
    """Open a stream or an upload, get some way, and cancel it."""
    if rng.random() < 0.2:
        call = service.AddPrompt()
        await call.write(pb.AddPromptRequest(config=pb.AddPromptConfig(transcript="A tone.")))
        if rng.random() < 0.5:
            await call.write(pb.AddPromptRequest(audio=pb.AudioPart(data=bytes(20_000))))
    else:
        call = service.Generate()
        bodies = [config(rng.choice([4, 20, 200]), seed=rng.randrange(1000)), TEXT[: rng.randrange(1, 600)]]
        bodies += rng.sample([pb.Flush(), pb.Interrupt(), "More text. "], rng.randrange(3))
        for body in bodies[: rng.randrange(1, 6)]:
            await call.write(message(body))
        if rng.random() < 0.5:
            reading = asyncio.ensure_future(read_on(call, rng.randrange(1, 6)))
            await asyncio.wait({reading}, timeout=rng.random())
    await asyncio.sleep(rng.choice([0, 0, rng.random() / 20]))
    call.cancel()
    assert await call.code() is grpc.StatusCode.CANCELLED


async def read_on(call: Any, count: int) -> None:
    with suppress(asyncio.CancelledError):
        for _ in range(count):
            await call.read()


async def cancel_many(target: Target, count: int, seed: int) -> None:
    """Cancel this many calls, `AT_ONCE` of them at the same time, each of these on a connection of its own."""

    async def some(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        async with target.service() as service:
            for _ in range(number, count, AT_ONCE):
                await cancel_somewhere(service, rng)

    await asyncio.gather(*(some(number) for number in range(AT_ONCE)))


@pytest.mark.timeout(600)
async def test_a_thousand_cancelled_calls_leave_nothing_behind(target: Target, admin: Admin) -> None:
    await cancel_many(target, CANCELS // 5, seed=1)  # fills caches, and pools of threads and memory
    before = await admin.until(lambda usage: not (usage.calls or usage.slots or usage.pages))
    files, memory, ended = await admin.open_files(), await admin.resident_bytes(), await admin.ended()
    await cancel_many(target, CANCELS, seed=2)
    await admin.until(lambda usage: usage.is_within(before))
    await admin.until_files(files)
    assert await admin.ended() - ended > CANCELS / 2, "most of the calls reached the server before their cancel"
    assert await admin.resident_bytes() - memory < MEMORY_BYTES
