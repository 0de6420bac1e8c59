"""A client that does not read its replies loses its call, and the call leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import grpc
import pytest
from support.doubles.cycles import without_collector
from support.doubles.made_up_time import run
from support.doubles.rpc_tasks import rpc_tasks
from support.servers.sessions import IDLE_SECONDS, SlowClient, session
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until

from voxcpm_grpc.errors import Aborted
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.rpc.delivery import ReplyWriter, reset_after
from voxcpm_server.services import handler
from voxcpm_server.values.inputs import Text

LONG = ("a" * 390 + ". ") * 40


class Context:
    """Takes each message after the next of these times, in seconds; None stands for never."""

    def __init__(self, *seconds: float | None) -> None:
        self.taken: list[object] = []
        self._seconds = list(seconds)

    async def send_initial_metadata(self, metadata: tuple[()]) -> None:
        pass

    async def write(self, message: object) -> None:
        seconds = self._seconds.pop(0) if self._seconds else 0.0
        await (asyncio.Event().wait() if seconds is None else asyncio.sleep(seconds))
        self.taken.append(message)


def write_all(context: Context, messages: int, *, pause: float = 0.0, seconds: float = 10.0) -> float:
    """Write this many messages with pauses between them; returns the time that it took."""

    async def main() -> float:
        writer = ReplyWriter(context, seconds)  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        loop.call_later(10_000, lambda: None)  # keeps the clock running
        for message in range(messages):
            await writer.write(message)
            await asyncio.sleep(pause)
        writer.close()
        return loop.time()

    return run(main())


@pytest.mark.parametrize("before", [0.0, 3.0, 9.9, 50.0])
def test_a_write_that_takes_longer_than_the_limit_raises_aborted(before):
    """The limit is that of each write, whenever it begins."""
    context = Context(0.0, None)
    with pytest.raises(Aborted, match=r"10 s.*limits\.write_seconds"):
        write_all(context, 2, pause=before)
    assert context.taken == [0]


def test_slow_writes_within_the_limit_may_take_any_time_together():
    context = Context(*[9.5] * 20)
    assert write_all(context, 20) == 190.0
    assert len(context.taken) == 20


def test_pauses_between_writes_do_not_count():
    context = Context()
    assert write_all(context, 5, pause=100.0) == 500.0
    assert len(context.taken) == 5


def test_a_session_ends_when_its_write_fails(fake):
    class Stuck(SlowClient):
        async def send(self, message: pb.AudioChunk) -> None:
            await asyncio.sleep(IDLE_SECONDS)
            raise Aborted("the client took no message")

    pool = fake()
    with pytest.raises(Aborted):
        session(pool, [Text(LONG)], client=Stuck(0), ends=False)
    assert not (pool.running or pool.waiting)


def calls_in_memory() -> int:
    return sum(type(one).__name__ == "_ServicerContext" for one in gc.get_objects())


async def speak_without_reading(served: Any) -> Any:
    call = served.stub.Generate()
    await call.write(pb.GenerateRequest(text=LONG))
    await call.done_writing()
    await until(lambda: served.pool.steps)
    return call


async def test_a_stream_that_is_not_read_ends_and_frees_everything(serve_front, caplog, monkeypatch):
    monkeypatch.setattr(handler, "STATUS_SECONDS", 0.1)
    caplog.set_level(logging.INFO)
    with without_collector():
        before = calls_in_memory()  # of servers of other tests
        async with serve_front(write_seconds=1.0) as served:
            await served.generate("First.")  # gRPC keeps the first call of a server in memory until the server stops
            calls = [await speak_without_reading(served) for _ in range(3)]
            await served.idle()
            await until(lambda: not rpc_tasks())
            assert (await served.generate("Still serving."))[-1].HasField("summary")  # the server forgets the last call
            await until(lambda: calls_in_memory() <= before)
            for call in calls:
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    async for _ in call:
                        pass
                assert raised.value.code() is grpc.StatusCode.CANCELLED
    assert caplog.text.count("code=ABORTED") == 3
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], caplog.text


async def test_a_client_that_reads_again_soon_gets_the_status(serve_front, details_of, monkeypatch):
    monkeypatch.setattr(handler, "STATUS_SECONDS", NEVER_SECONDS)
    async with serve_front(write_seconds=1.0) as served:
        call = await speak_without_reading(served)
        await served.idle()
        received = 0
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for chunk in call:
                received += chunk.sample_count
        assert received
        assert raised.value.code() is grpc.StatusCode.ABORTED
        assert "limits.write_seconds" in (raised.value.details() or "")
        assert details_of(raised.value).retry_seconds is None
        assert details_of(raised.value).pushback_ms is None


async def test_a_client_that_reads_slowly_gets_all_audio(serve_front):
    async with serve_front(write_seconds=HANG_SECONDS) as served:
        call = await speak_without_reading(served)
        await served.pool.stalled()
        chunks = [chunk async for chunk in call]
        assert chunks[-1].summary.total_samples == 960 * served.pool.steps


@pytest.mark.parametrize(("ends_after", "warnings"), [(2.1, 0), (60.0, 1)])
def test_a_call_whose_connection_ends_at_the_moment_of_its_reset_is_not_logged_as_one_that_stays(
    caplog, ends_after, warnings
):
    """gRPC's task that watches a call ends with the connection, shortly before the task of the call."""

    async def unwatched_call() -> None:
        reset_after(2.0)
        await asyncio.sleep(ends_after)

    async def main() -> None:
        await asyncio.wait([asyncio.create_task(unwatched_call())])

    run(main())
    assert caplog.text.count("cannot be reset") == warnings


def test_a_caller_that_leaves_at_the_moment_of_its_status_is_not_logged_as_an_error(caplog):
    """gRPC then fails to send the status, as it fails with every batch of an RPC that is over."""
    log = logging.getLogger("grpc._cython.cygrpc")
    for text in ('Failed "execute_batch": (SendStatusFromServerOperation,)', "Failed grpc_call_start_batch: 8"):
        try:
            raise grpc.aio.InternalError(text)
        except grpc.aio.InternalError:
            log.exception("ExecuteBatchError raised in core")
    assert [record.exc_text for record in caplog.records if "start_batch" in str(record.exc_text)]
    assert "SendStatusFromServerOperation" not in caplog.text
