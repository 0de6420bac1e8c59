"""A full server refuses a call with RESOURCE_EXHAUSTED, the number, the limit and the time of a retry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from support.doubles.fake_engine import MakeFake
from support.doubles.fake_engine import request as fake_request
from support.doubles.pools import everything, patient, pool_of
from support.servers.uploads import add_prompt, recording
from support.servers.waiting import until

from voxcpm_grpc.events import Admitted
from voxcpm_grpc.v1 import tts_pb2 as pb

SHORT = pb.GenerateConfig(turn=pb.TurnConfig(sampling=pb.Sampling(max_steps=3)))
BOOK = "A long story that takes its time. " * 30


async def speak(served: Any) -> None:
    await served.generate("Hello.")


async def store(served: Any) -> None:
    await add_prompt(served, seed=7, transcript="Another.")


async def with_stream(served: Any) -> None:
    before = served.gate.streams
    served.open_call = served.stub.Generate()
    await until(lambda: served.gate.streams == before + 1)


async def with_speech(served: Any) -> None:
    await served.generate("Hello, all of you.")


async def with_upload(served: Any) -> None:
    call = served.open_call = served.stub.AddPrompt()
    await call.write(pb.AddPromptRequest(config=pb.AddPromptConfig(transcript="Hi.")))
    await call.write(pb.AddPromptRequest(audio=pb.AudioPart(data=recording(3))))
    await until(lambda: served.uploads.held > 0)


async def with_voice(served: Any) -> None:
    await add_prompt(served, seed=1, transcript="One.")


async def with_busy_slots(served: Any) -> None:
    for _ in range(4):
        await served.pool.slots.acquire()


Step = Callable[[Any], Awaitable[None]]
TABLE: dict[str, tuple[dict[str, Any], Step, Step, str, str, dict[str, str]]] = {
    "streams": (
        {"max_streams": 1},
        with_stream,
        speak,
        r"1 streams are open and the limit is 1",
        "TOO_MANY_STREAMS",
        {"open": "1", "limit": "1"},
    ),
    "streams of a connection": (
        {"max_streams_per_connection": 1},
        with_stream,
        speak,
        r"this connection has 1 open streams and the limit is 1",
        "TOO_MANY_STREAMS_OF_CONNECTION",
        {"open": "1", "limit": "1"},
    ),
    "streams of a caller": (
        {"max_streams_per_caller": 1},
        with_stream,
        speak,
        r"this caller has 1 open streams and the limit is 1",
        "TOO_MANY_STREAMS_OF_CALLER",
        {"open": "1", "limit": "1"},
    ),
    "characters of a caller": (
        {"max_chars_per_minute_per_caller": 10},
        with_speech,
        speak,
        r"limit is 10 characters a minute; retry in [\d.]+ s",
        "TEXT_QUOTA_USED_UP",
        {"limit": "10"},
    ),
    "wait in the queue": (
        {"max_queue_seconds": 0.1},
        with_busy_slots,
        speak,
        r"no slot became free within 0\.1 s",
        "QUEUE_TIMEOUT",
        {"waited_seconds": "0.1"},
    ),
    "a tiny wait in the queue": (
        {"max_queue_seconds": 0.0005},
        with_busy_slots,
        speak,
        r"no slot became free within 0\.5 ms",
        "QUEUE_TIMEOUT",
        {"waited_seconds": "0.0005"},
    ),
    "uploads": (
        {"max_upload_bytes_total": 9_000, "max_upload_bytes_per_caller": 0},
        with_upload,
        store,
        r"uploads .*\d+ bytes and the limit is 9000",
        "UPLOADS_TOO_LARGE",
        {"limit_bytes": "9000"},
    ),
    "uploads of a caller": (
        {"max_upload_bytes_per_caller": 9_000},
        with_upload,
        store,
        r"uploads of this caller hold \d+ bytes and the limit is 9000",
        "UPLOADS_OF_CALLER_TOO_LARGE",
        {"limit_bytes": "9000"},
    ),
    "voices": (
        {"max_voices": 1, "max_voices_per_caller": 0},
        with_voice,
        store,
        r"the store has room for 1 voices",
        "TOO_MANY_VOICES",
        {"limit": "1"},
    ),
    "voices of a caller": (
        {"max_voices_per_caller": 1},
        with_voice,
        store,
        r"this caller has 1 stored voices and the limit is 1",
        "TOO_MANY_VOICES_OF_CALLER",
        {"stored": "1", "limit": "1"},
    ),
}


@pytest.mark.parametrize("case", TABLE)
async def test_every_refusal_of_a_full_server_says_why_and_when_to_retry(serve_front, details_of, case):
    options, fill, call, text, reason, values = TABLE[case]
    async with serve_front(**options) as served:
        await fill(served)
        with pytest.raises(grpc.aio.AioRpcError, match=text) as raised:
            await call(served)
        check(raised.value, details_of, reason)
        assert details_of(raised.value).values.items() >= values.items()


def check(error: grpc.aio.AioRpcError, details_of: Any, reason: str) -> float:
    """Check the status of a refusal, and return the seconds until a retry."""
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    details = details_of(error)
    assert details.request_id
    assert details.reason == reason
    assert details.retry_seconds is not None and details.retry_seconds > 0
    assert details.pushback_ms == round(1000 * details.retry_seconds)
    return details.retry_seconds


async def test_a_full_queue_and_a_deadline_before_the_next_slot_are_refused_at_once(serve_front, details_of):
    make = MakeFake(slots=1, queue=1, step_seconds=0.02)  # too slow for streams to share the slot
    async with pool_of(make, settings=patient()) as pool, serve_front(pool) as served:
        await everything(pool.generate(fake_request("known", 40)))
        book = pool.generate(fake_request("book", 10**6, BOOK), window=10**6)
        assert isinstance(await anext(book), Admitted)
        with pytest.raises(grpc.aio.AioRpcError, match=r"wait for a slot is .+ and the deadline is in .+;") as raised:
            await served.generate(SHORT, "Hello.", timeout=8.0)
        values = details_of(raised.value).values
        wait, remaining = float(values["wait_seconds"]), float(values["deadline_seconds"])  # of 6 digits
        assert remaining <= 8.01 < wait  # gRPC sends a timeout of this length in units of 10 ms, rounded up
        retry = check(raised.value, details_of, "DEADLINE_TOO_SOON")
        assert retry == pytest.approx(max(1.0, wait - remaining), rel=1e-5, abs=0.002)
        waiting = asyncio.ensure_future(served.generate(SHORT, "Hello.", timeout=1e6))
        await until(lambda: len(pool.replicas[0].calls) == 2)
        with pytest.raises(grpc.aio.AioRpcError, match="1 requests wait, the limit is 1") as raised:
            await served.generate(SHORT, "Hello.", timeout=1e6)
        check(raised.value, details_of, "QUEUE_FULL")
        await book.aclose()
        assert any(chunk.audio for chunk in await waiting)
