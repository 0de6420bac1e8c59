from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Awaitable, Callable

import numpy as np
import psutil
import pytest
import pytest_asyncio
import uvloop
from support.clients.whole_streams import heard
from support.doubles.cycles import no_garbage
from support.doubles.fake_engine import MakeFake, refuse_to_start, request
from support.doubles.pools import (
    Launcher,
    RecordedPool,
    at_rest,
    chunks_of,
    everything,
    indexes_of,
    pool_of,
    pool_with,
    steps_reach,
)
from support.engines.voice_parts import latents_of
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until

from voxcpm_grpc.errors import Aborted, Exhausted, Internal, InvalidRequest, StartupError, Unavailable
from voxcpm_grpc.events import Admitted, AudioChunk, Event, Finished, FinishReason
from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.pool import warm_up
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.pool.replica import Replica
from voxcpm_grpc.request import Role

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with pool_of(MakeFake()) as pool:
        yield pool


async def test_the_events_of_a_request_are_in_order(pool):
    admitted, *chunks, finished = await everything(pool.generate(request("a", 5)))
    assert isinstance(admitted, Admitted)
    assert [chunk.index for chunk in chunks] == [0, 1, 2, 3, 4]
    assert all(np.array_equal(chunk.samples, np.full(960, chunk.index, np.float32)) for chunk in chunks)
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.steps) == (FinishReason.MAX_STEPS, 5)


async def test_fifty_requests_at_once_do_not_mix(pool):
    streams = [pool.generate(request(f"many-{i}", 3 + i), window=1 + i % 7) for i in range(50)]
    results = await asyncio.gather(*(everything(stream) for stream in streams))
    for i, (_, *chunks, finished) in enumerate(results):
        assert [chunk.index for chunk in chunks] == list(range(3 + i))
        assert finished.steps == 3 + i


async def test_a_request_is_sent_before_its_call_is_read(pool):
    before = (await at_rest(pool)).steps
    stream = pool.generate(request("eager", 3))
    await steps_reach(lambda: pool.stats().steps, before + 1 + 3)
    assert len(await everything(stream)) == 5


async def test_iteration_raises_the_errors_of_a_request(pool):
    stream = pool.generate(request("r", 3, "refuse"))
    with pytest.raises(Exhausted, match="queue is full") as caught:
        await anext(stream)
    assert caught.value.retry_after == 2.5
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    with pytest.raises(Internal):
        await everything(pool.generate(request("f", 3, "fail")))


async def test_a_check_raises_what_the_engine_has_against_a_request(pool):
    async with asyncio.timeout(HANG_SECONDS):
        await pool.check(request("a", 3))
        with pytest.raises(InvalidRequest, match="refused"):
            await pool.check(request("a", 3, "refuse"))
    assert not any(replica.calls for replica in pool.replicas)


async def test_requests_with_the_same_id_do_not_disturb_each_other(pool):
    streams = [pool.generate(request("same", 3)) for _ in range(2)]
    assert [len(await everything(stream)) for stream in streams] == [5, 5]


async def test_a_request_may_have_the_name_of_a_codec_job_as_its_id(pool):
    encoding = asyncio.create_task(pool.encode(np.zeros(3200), Role.PROMPT))
    await asyncio.sleep(0)
    assert len(await everything(pool.generate(request("encode", 3)))) == 5
    await encoding


async def test_a_request_that_cannot_be_encoded_fails_alone(pool, caplog):
    with pytest.raises(Internal):
        await everything(pool.generate(request("surrogate", 3, "\ud800")))
    assert "surrogate" in caplog.text
    assert len(await everything(pool.generate(request("next", 3)))) == 5


async def test_no_event_of_a_cancelled_request_reaches_the_next_with_its_id(pool):
    for _ in range(20):
        stream = pool.generate(request("again", 1000))
        for _ in range(4):
            await anext(stream)
        await stream.aclose()
    _, *chunks, _ = await everything(pool.generate(request("again", 10)))
    assert [chunk.index for chunk in chunks] == list(range(10))
    await at_rest(pool)


async def test_closing_a_call_cancels_its_request(pool):
    before = (await at_rest(pool)).cancelled
    stream = pool.generate(request("c", 100_000))
    async with contextlib.aclosing(stream):
        async for event in stream:
            if isinstance(event, AudioChunk) and event.index == 3:
                break
    assert (await at_rest(pool)).cancelled == before + 1
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_cancelling_the_reader_cancels_the_request(pool):
    before = (await at_rest(pool)).cancelled
    started = asyncio.Event()

    async def read():
        async for _ in pool.generate(request("c", 100_000), window=10**6):
            started.set()

    task = asyncio.create_task(read())
    await started.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert (await at_rest(pool)).cancelled == before + 1


@pytest.mark.parametrize("how", ["close", "drop", "drop after a chunk"])
async def test_a_call_that_is_closed_or_dropped_frees_its_slot(pool, how):
    before = (await at_rest(pool)).cancelled
    stream = pool.generate(request("left", 100_000))
    if how == "close":
        await stream.aclose()
    elif how == "drop after a chunk":
        await anext(stream)
    del stream
    gc.collect()
    await asyncio.sleep(0)
    assert (await at_rest(pool)).cancelled == before + 1


async def test_the_garbage_collector_keeps_a_call_with_a_reader(pool, tmp_path):
    may_continue = tmp_path / "may continue"
    reader = asyncio.create_task(everything(pool.generate(request("read", 3, f"after {may_continue}"))))
    await at_rest_but_one(pool)
    gc.collect()
    may_continue.touch()
    assert len(await reader) == 5


async def at_rest_but_one(pool: RecordedPool) -> None:
    """Wait until the engine works on one stream only."""
    await everything(pool.generate(request("last", 1)))
    await until(lambda: pool.stats().running == 1)


async def test_closing_wakes_a_reader_in_another_task():
    async with pool_of(MakeFake(step_seconds=NEVER_SECONDS)) as pool:
        stream = pool.generate(request("w", 100_000))
        reader = asyncio.create_task(everything(stream))
        await asyncio.sleep(0.1)
        await stream.aclose()
        assert await reader == []


async def test_closing_a_call_that_has_ended_unread_cancels_nothing(pool):
    before = (await at_rest(pool)).cancelled
    stream = pool.generate(request("e", 3))
    await at_rest(pool)
    await stream.aclose()
    assert (await at_rest(pool)).cancelled == before


async def next_index(call: EngineCall[Event]) -> int:
    """The index of the next event, a chunk."""
    chunk = await anext(call)
    assert isinstance(chunk, AudioChunk)
    return chunk.index


async def test_a_reader_may_set_the_limit_itself():
    async with pool_of(MakeFake()) as pool:
        call = pool.generate(request("manual", 64), window=8, first_limit=8)
        assert isinstance(await anext(call), Admitted)
        for index in range(8):
            assert await next_index(call) == index
        await steps_reach(lambda: pool.stats().steps, 1 + 8)
        call.allow(14)
        for index in range(8, 14):
            assert await next_index(call) == index
        await steps_reach(lambda: pool.stats().steps, 1 + 8 + 6)
        call.allow(64)
        assert indexes_of(await everything(call)) == list(range(14, 64))


async def test_an_engine_makes_no_more_chunks_than_a_slow_reader_allows():
    async with pool_of(MakeFake()) as pool:
        slow = pool.generate(request("slow", 64), window=8)
        assert isinstance(await anext(slow), Admitted)
        await steps_reach(lambda: pool.stats().steps, 1 + 8)
        for index in range(8):
            assert await next_index(slow) == index
        await steps_reach(lambda: pool.stats().steps, 1 + 8 + 8)
        assert indexes_of(await everything(slow)) == list(range(8, 64))


async def test_a_slow_reader_does_not_delay_other_streams(pool):
    slow = pool.generate(request("slow", 64), window=8)
    await anext(slow)
    assert chunks_of(await everything(pool.generate(request("fast", 500), window=64))) == 500
    assert chunks_of(await everything(slow)) == 64


async def test_encode_and_decode(pool):
    waveform = np.repeat(np.arange(10, dtype=np.float32), 320)
    part = await pool.encode(waveform[:-80], Role.REFERENCE)
    latents = latents_of(part)
    assert (latents.shape, latents.dtype) == ((10, 4, 8), np.float32)
    assert np.allclose(latents[-1, :, 0], [9, 9, 9, 0])
    assert np.allclose(latents_of(await pool.encode(waveform[80:], Role.PROMPT))[1], 1)
    pieces = await everything(pool.decode(part))
    assert [piece.shape for piece in pieces] == [(960,)] * 10
    assert np.allclose(pieces[5], 5)
    assert (await pool.encode(waveform[:0], Role.PROMPT)).steps == 0


@pytest.fixture
def callback_cpu(monkeypatch):
    """CPU seconds of each callback of the event loop."""
    spent: list[float] = []
    run = asyncio.Handle._run

    def timed(process):
        before = time.thread_time()
        run(process)
        spent.append(time.thread_time() - before)

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    return spent


async def longest(callback_cpu: list[float], work: Callable[[], Awaitable[object]]) -> float:
    """The longest callback of the best round: slow code is slow in all rounds, and the first round allocates memory."""
    rounds = []
    for _ in range(6):
        callback_cpu.clear()
        await work()
        assert len(callback_cpu) > 3
        rounds.append(max(callback_cpu))
    return min(rounds)


def cpu_of(work: Callable[[], object]) -> float:
    """CPU seconds of this thread in the best of several rounds."""
    rounds = []
    for _ in range(6):
        before = time.thread_time()
        work()
        rounds.append(time.thread_time() - before)
    return min(rounds)


async def test_large_messages_do_not_block_the_event_loop(pool, callback_cpu):
    """They are copied a few times, and no Python code visits each sample."""
    waveform = np.zeros(1_500_000, np.float32)  # 6 MB

    async def work():
        assert (await pool.encode(waveform, Role.REFERENCE)).steps == 4688

    assert await longest(callback_cpu, work) < 40 * cpu_of(waveform.copy)


async def test_many_streams_do_not_block_the_event_loop(pool, monkeypatch):
    """One turn of the loop decodes one message at most, that of one step, however many wait."""
    streams, read, reports = 50, [0], [0]
    run, decode = asyncio.Handle._run, encoding.decode_reports

    def counted(process):
        read.append(0)
        run(process)

    def decoded(data):
        read[-1] += 1
        message = decode(data)
        reports.append(len(message))
        return message

    monkeypatch.setattr(asyncio.Handle, "_run", counted)
    monkeypatch.setattr(encoding, "decode_reports", decoded)
    calls = [pool.generate(request(f"busy-{number}", 100)) for number in range(streams)]
    time.sleep(0.5)  # noqa: ASYNC251 - messages pile up
    for events in await asyncio.gather(*map(everything, calls)):
        assert chunks_of(events) == 100
    assert sum(read) > 50
    assert max(read) <= 1 + 1  # a heartbeat, which has a socket of its own
    assert max(reports) <= 2 * streams + 1  # the last audio of each, and its end; and the statistics


async def test_closing_the_pool_ends_its_calls():
    async with pool_of(MakeFake()) as pool:
        stream = pool.generate(request("a", 100_000))
        await anext(stream)
        await anext(stream)
        await pool.close()
        assert not pool.healthy
        await asyncio.wait_for(pool.closed_or_given_up(), HANG_SECONDS)
        with pytest.raises(Aborted):
            await everything(stream)
        with pytest.raises(Unavailable):
            await anext(pool.generate(request("b", 1)))


async def test_a_pool_with_an_engine_that_cannot_start_does_not_start():
    good = Launcher([MakeFake()])
    pool = pool_with(good, Launcher([MakeFake(before=refuse_to_start)]))
    with pytest.raises(StartupError, match=r"model.safetensors is missing"):
        await pool.start()
    assert not pool.healthy
    [process] = good.processes
    assert not process.pid or not psutil.pid_exists(process.pid)


async def test_engines_of_different_models_do_not_start():
    pool = pool_with(Launcher([MakeFake()]), Launcher([MakeFake(fingerprint="1" * 32)]))
    with pytest.raises(StartupError, match="different models"):
        await pool.start()


async def test_a_warm_up_runs_a_request_on_every_engine():
    async with pool_of(MakeFake(), MakeFake()) as pool:
        await pool.warm_up()
        await until(lambda: all(stats.steps for stats in pool.stats_by_engine().values()))


@pytest.mark.parametrize(("text", "reason"), [("fail", "internal error"), ("exit", "no engine is ready")])
async def test_a_warm_up_that_fails_is_an_error_of_the_start(monkeypatch, text, reason):
    monkeypatch.setattr(warm_up, "WARM_UP_TEXT", text)
    async with pool_of(MakeFake()) as pool:
        with pytest.raises(StartupError, match=f"the warm-up request of engine-0 failed .*{reason}"):
            await pool.warm_up()


async def test_a_pool_works_on_uvloop():
    async def main():
        async with pool_of(MakeFake()) as pool:
            return await asyncio.gather(*(everything(pool.generate(request(str(i), 30))) for i in range(10)))

    def run():
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())

    assert [len(events) for events in await asyncio.to_thread(run)] == [32] * 10


async def test_the_work_of_streams_counts_and_not_their_number():
    async with pool_of(MakeFake(step_seconds=0.002), MakeFake(step_seconds=0.002)) as pool:
        first, second = pool.replicas
        book = pool.generate(request("book", 10**6, "A long story that takes its time. " * 100), window=10**6)
        (busy,) = [replica for replica in pool.replicas if replica.calls]
        before = steps_left(busy)
        free = second if busy is first else first
        words = [pool.generate(request(f"word{i}", 100, "Hello.")) for i in range(4)]
        assert (len(busy.calls), len(free.calls)) == (1, 4)
        assert all(chunks_of(events) == 100 for events in await asyncio.gather(*map(everything, words)))
        assert steps_left(free) == 0
        await heard(book, 500)
        assert 0 < steps_left(busy) < before
        await book.aclose()


def steps_left(replica: Replica) -> float:
    _, steps = replica.load()
    return steps


async def test_an_idle_pool_spreads_requests_that_come_at_once():
    async with pool_of(MakeFake(), MakeFake(), MakeFake()) as pool:
        streams = [pool.generate(request(f"r{i}", 100_000)) for i in range(9)]
        assert [len(replica.calls) for replica in pool.replicas] == [3, 3, 3]
        for stream in streams:
            await stream.aclose()
        assert [len(replica.calls) for replica in pool.replicas] == [0, 0, 0]


async def test_calls_leave_nothing_to_the_garbage_collector(pool):
    async def work() -> None:
        await everything(pool.generate(request("a", 5)))
        for text in ("refuse", "fail"):
            with pytest.raises((Exhausted, Internal)):
                await everything(pool.generate(request("r", 3, text)))
        with pytest.raises(InvalidRequest):
            await pool.check(request("a", 3, "refuse"))
        for close in (EngineCall.aclose, None):
            stream = pool.generate(request("long", 1000))
            await anext(stream)
            if close:
                await close(stream)
            del stream
        reading = asyncio.create_task(everything(pool.generate(request("cancelled", 1000))))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        await pool.encode(np.zeros(4000, np.float32), Role.PROMPT)
        await at_rest(pool)

    await work()
    with no_garbage():
        await work()
