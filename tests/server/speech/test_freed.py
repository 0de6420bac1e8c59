"""Memory that a call has taken is free when the call has ended, without the garbage collector.

grpc.aio itself leaves a small cycle for each call: the function that looks up its method.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
import psutil
import pytest
from google.protobuf.duration_pb2 import Duration
from support.doubles.cycles import no_garbage, without_collector
from support.doubles.rpc_tasks import rpc_tasks
from support.servers.uploads import PROMPT, REFERENCE, add_hifi, add_prompt, chunks_of, conditioned, recording, upload
from support.servers.waiting import until

from voxcpm_grpc.errors import Internal, Unavailable
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.speech import session
from voxcpm_server.wire.enums import ENCODINGS

LONG = "A sentence that takes its time, as there is much of it. " * 10
CALLS = 100
MOST_BYTES = 64 << 20  # an encoder of FLAC has 2.7 MB
Work = Callable[[Any], Awaitable[object]]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SETTLE_SECONDS", 0.05)  # of calls whose client is gone


async def leave_nothing(served: Any, *works: Work) -> None:
    """Do some work at the same time, and then again, and check what that leaves."""

    async def once() -> None:
        await asyncio.gather(*(work(served) for work in works))
        await served.idle()
        await until(lambda: not rpc_tasks())
        await served.generate("Next.")  # gRPC keeps the last call until the next one arrives

    await once()
    with no_garbage():
        await once()


async def refused(call: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await call


async def ended(call: Any) -> None:
    with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        while isinstance(await call.read(), pb.AudioChunk):
            pass


async def speaking(served: Any, **options: Any) -> Any:
    call = served.stub.Generate(**options)
    await call.write(pb.GenerateRequest(text=LONG))
    await call.read()
    await call.read()
    return call


# ---- the ways in which a stream ends


async def speaks(served: Any) -> None:
    pause = pb.GenerateRequest(pause=pb.Pause(milliseconds=30))
    turn = pb.TurnConfig(style="calm", retry_badcase=True)
    await served.generate("One is here. And two. ", pb.Flush(tag="a"), pause, "Three. ", turn, "Four is calm.")


async def is_interrupted(served: Any) -> None:
    call = await speaking(served)
    await call.write(pb.GenerateRequest(interrupt=pb.Interrupt()))
    await call.write(pb.GenerateRequest(text="More."))
    await call.done_writing()
    await ended(call)


async def is_cancelled(served: Any) -> None:
    (await speaking(served)).cancel()


async def is_cancelled_in_the_queue(served: Any) -> None:
    for _ in range(4):
        await served.pool.slots.acquire()
    call = served.stub.Generate()
    await call.write(pb.GenerateRequest(text=LONG))
    await until(lambda: served.pool.waiting)
    call.cancel()
    await ended(call)
    for _ in range(4):
        served.pool.slots.release()


async def is_left(served: Any) -> None:
    async with grpc.aio.insecure_channel(served.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = tts_pb2_grpc.VoxCPMServiceStub(channel).Generate()
        await call.write(pb.GenerateRequest(text=LONG))
        await call.read()


async def has_a_deadline(served: Any) -> None:
    served.pool.hold_after = served.pool.steps + 2
    await refused(served.generate(LONG, timeout=0.2))
    served.pool.release()
    served.pool.released.clear()


async def test_a_stream_leaves_nothing_however_it_ends(serve_front):
    async with serve_front() as served:
        await leave_nothing(
            served, speaks, is_interrupted, is_cancelled, is_cancelled_in_the_queue, is_left, has_a_deadline
        )


async def test_errors_leave_nothing(serve_front):
    async def errors(served: Any) -> None:
        failures = served.pool.failures
        failures["Lost."], failures["Broken."] = (0, Unavailable("gone")), (1, ZeroDivisionError())
        failures["Both."] = (0, Internal())
        broken = served.channel.stream_stream("/voxcpm_grpc.v1.VoxCPMService/Generate")(iter([b"\xff\xff"]))
        await asyncio.gather(
            refused(served.generate("One.", pb.Finish(), "a text after the end")),
            refused(served.generate("Both.", pb.Finish(), "a text after the end")),
            refused(served.generate("Lost.")),
            refused(served.generate("Broken.")),
            refused(served.generate(conditioned(voice="nobody"), "One.")),
            refused(served.generate(conditioned(inline_prompt=pb.InlinePrompt(transcript="a")), "One.")),
            refused(broken.read()),
            refused(served.stub.GetVoice(pb.GetVoiceRequest(id="prm_nobody"))),
        )

    async with serve_front() as served:
        await leave_nothing(served, errors)


async def test_timeouts_leave_nothing(serve_front):
    async def gets_no_slot(served: Any) -> None:
        for _ in range(4):
            await served.pool.slots.acquire()
        await refused(served.generate(pb.GenerateConfig(max_queue_time=Duration(nanos=10**8)), "One."))
        for _ in range(4):
            served.pool.slots.release()

    async def is_silent(served: Any) -> None:
        call, empty = served.stub.Generate(), served.stub.Generate()
        await call.write(pb.GenerateRequest(text="One is here. "))
        await asyncio.gather(ended(call), ended(empty))

    async def is_not_read(served: Any) -> None:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(text=10 * LONG))
        await call.done_writing()
        await until(lambda: served.gate.streams)
        await served.idle()  # after `write_seconds`
        await ended(call)

    async with serve_front(stream_idle_seconds=0.2, write_seconds=0.5) as served:
        await leave_nothing(served, gets_no_slot, is_silent, is_not_read)


async def test_voices_and_uploads_leave_nothing(serve_front):
    seeds = iter(range(1000))

    async def voices(served: Any) -> None:
        handle = await add_prompt(served, next(seeds))
        await served.generate(conditioned(voice=handle.id), "One.")
        await add_hifi(
            served,
            (PROMPT, recording(next(seeds))),
            (REFERENCE, recording(next(seeds))),
            uploaded_prompt=pb.UploadedPrompt(transcript="One."),
            uploaded_reference=pb.UploadedReference(),
            preview=pb.Preview(mode=pb.PREVIEW_MODE_RECONSTRUCTION),
        )
        config = pb.EncodeLatentsConfig(role=PROMPT)
        await served.stub.EncodeLatents(upload(pb.EncodeLatentsRequest, config, (0, recording())))

    async def auditions(served: Any, *texts: str) -> None:
        preview = pb.Preview(mode=pb.PREVIEW_MODE_SYNTHESIS, text="One.", auditions=True)
        messages = upload(pb.AddReferenceRequest, pb.AddReferenceConfig(preview=preview), (0, recording(next(seeds))))
        more = [pb.AddReferenceRequest(audition=pb.Audition(text=text)) for text in texts]
        await chunks_of(served.stub.AddReference, [*messages, *more])

    async def errors(served: Any) -> None:
        config = pb.AddPromptConfig(transcript="One.")
        late = pb.AddPromptRequest(audio=pb.AudioPart(data=b"1"))
        parts = list(upload(pb.AddPromptRequest, config, (0, recording())))
        await asyncio.gather(
            refused(chunks_of(served.stub.AddPrompt, upload(pb.AddPromptRequest, config, (0, b"RIFF" * 30)))),
            refused(chunks_of(served.stub.AddPrompt, [*parts, late])),
            refused(chunks_of(served.stub.AddPrompt, parts[:-1])),
            refused(auditions(served, "One.", "...")),
        )

    async def is_cancelled_while_it_uploads(served: Any) -> None:
        call = served.stub.AddPrompt()
        await call.write(pb.AddPromptRequest(config=pb.AddPromptConfig(transcript="One.")))
        await call.write(pb.AddPromptRequest(audio=pb.AudioPart(data=bytes(1000))))
        await until(lambda: served.uploads.held)
        call.cancel()
        await until(lambda: not served.uploads.held)

    async with serve_front() as served:
        await leave_nothing(
            served, voices, lambda served: auditions(served, "One.", "Two."), errors, is_cancelled_while_it_uploads
        )


# ---- formats


def spoken_in(encoding: Any, **turn: Any) -> pb.GenerateConfig:
    return pb.GenerateConfig(output=pb.AudioFormat(encoding=encoding), turn=pb.TurnConfig(**turn))


async def test_a_stream_of_any_format_leaves_nothing(serve_front):
    async def formats(served: Any) -> None:
        for encoding in ENCODINGS:
            await served.generate(spoken_in(encoding), "One.", pb.Interrupt(), "Two.")
            await served.generate(spoken_in(encoding, speed=1.2, volume_gain_db=3), "One.")
            call = served.stub.Generate()
            await call.write(pb.GenerateRequest(config=spoken_in(encoding)))
            await call.write(pb.GenerateRequest(text=LONG))
            await call.read()
            call.cancel()

    async with serve_front() as served:
        await leave_nothing(served, formats)


async def test_many_streams_of_the_largest_encoder_take_no_more_memory_than_a_few(serve_front):
    process, config = psutil.Process(), spoken_in(pb.AUDIO_ENCODING_FLAC)
    async with serve_front() as served:
        with without_collector():
            for _ in range(5):
                await served.generate(config, "One.")
            before = process.memory_info().rss
            for _ in range(CALLS):
                await served.generate(config, "One.")
            assert process.memory_info().rss - before < MOST_BYTES
