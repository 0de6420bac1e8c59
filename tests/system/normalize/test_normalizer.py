"""The process that normalises text, and a server that uses it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import psutil
import pytest
from support.servers.running import Server, serving
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_client import Client
from voxcpm_grpc.errors import Unavailable
from voxcpm_server.text.normalize.normalizer import TextNormalizer


@pytest.fixture
async def normalizer() -> AsyncIterator[TextNormalizer]:
    one = TextNormalizer(timeout=HANG_SECONDS)
    yield one
    await one.close()


async def test_the_event_loop_goes_on_while_a_long_text_is_normalised(normalizer: TextNormalizer):
    await normalizer.normalize("1")  # starts the process
    loop = asyncio.get_running_loop()
    text = "今天是2024年5月1日，气温25℃，价格￥50。" * 12
    work = asyncio.create_task(normalizer.normalize(text))
    turns, began = 0, loop.time()
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    assert "二零二四年五月一日" in work.result()
    assert turns > 100, f"{turns} turns of the loop in {loop.time() - began:.3f} s"


async def test_a_process_that_is_killed_once_is_replaced(normalizer: TextNormalizer):
    assert await normalizer.normalize("I have 3.") == "I have three."
    first = normalizer.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await normalizer.normalize("I have 4.") == "I have four."
    assert normalizer.pid != first


async def test_a_process_that_is_killed_twice_is_reported():
    """Each process is killed at its start, which imports for seconds."""
    normalizer, killed = TextNormalizer(), set[int]()
    work = asyncio.create_task(normalizer.normalize("今天是2024年5月1日。"))
    while not work.done():
        if (pid := normalizer.pid) is not None and pid not in killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        await asyncio.sleep(0.001)
    with pytest.raises(Unavailable, match="the process that normalises text was stopped twice") as caught:
        await work
    assert caught.value.retry_after
    assert len(killed) == 2
    await normalizer.close()


async def test_after_the_end_nothing_is_normalised():
    one = TextNormalizer()
    await one.close()
    with pytest.raises(Unavailable, match="shutting down"):
        await one.normalize("1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("voices")) as running:
        yield running


def test_a_server_speaks_numbers_in_words(server: Server):
    with Client(server.address, timeout=HANG_SECONDS) as client, client.session(normalize=True, max_steps=4) as session:
        session.send_text("I have 3 cats. ")
        session.pause(0.1)
        session.send_text("On 2024-05-01 it costs $5.")
        session.finish()
        events = [event for chunk in session for event in chunk.events if event.kind == "started"]
    assert [event.text for event in events] == [
        "I have three cats.",
        "On May first, twenty twenty four it costs five dollars.",
    ]
    assert [(event.input_start, event.input_end) for event in events] == [(0, 15), (15, 41)]


async def test_a_process_that_was_started_early_reads_the_first_text(normalizer: TextNormalizer):
    normalizer.start()
    await until(lambda: normalizer.pid)
    first = normalizer.pid
    assert await normalizer.normalize("I have 3.") == "I have three."
    assert normalizer.pid == first


async def test_a_process_that_is_killed_while_it_starts_is_replaced(normalizer: TextNormalizer):
    normalizer.start()
    await until(lambda: normalizer.pid)
    first = normalizer.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await normalizer.normalize("I have 3.") == "I have three."
    assert normalizer.pid != first


@pytest.mark.parametrize("is_spawned", [False, True])
async def test_an_end_during_the_start_leaves_no_process(is_spawned: bool):
    one = TextNormalizer()
    one.start()
    if is_spawned:
        await until(lambda: one.pid)
    await one.close()
    assert not one.pid or ended([psutil.Process(one.pid)] if psutil.pid_exists(one.pid) else [])


def normalizers(server: Server) -> list[psutil.Process]:
    """The processes of a server, and of its fronts, that normalise text."""
    found = []
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += [child] if "voxcpm-grpc normalize" in " ".join(child.cmdline()) else []
    return found


def ended(processes: list[psutil.Process]) -> bool:
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes)


@pytest.mark.parametrize(("flags", "count"), [((), 1), (("--fronts", "2"), 2)])
async def test_the_processes_start_and_end_with_their_server(tmp_path, flags: tuple[str, ...], count: int):
    with serving(tmp_path, *flags) as running:
        await until(lambda: running.log.count("the process that normalises text is ready") == count)
        children = psutil.Process(running.process.pid).children(recursive=True)
        processes = normalizers(running)
        assert len(processes) == count
        with Client(running.address, timeout=HANG_SECONDS) as client:
            client.say("1", normalize=True, max_steps=4)
        assert normalizers(running) == processes
        running.kill()
        await until(lambda: ended(children))


async def test_a_server_may_leave_the_start_to_the_first_text(tmp_path):
    with serving(tmp_path, "--text.start-normalizer", "false") as running:
        with Client(running.address, timeout=HANG_SECONDS) as client:
            client.say("1", max_steps=4)
            assert not normalizers(running)
            client.say("1", normalize=True, max_steps=4)
        assert len(normalizers(running)) == 1


@pytest.mark.parametrize("flags", [(), ("--fronts", "2")])
async def test_a_server_that_is_stopped_while_the_process_starts_leaves_none(tmp_path, flags: tuple[str, ...]):
    with serving(tmp_path, *flags) as running:
        await until(lambda: normalizers(running))
        children = psutil.Process(running.process.pid).children(recursive=True)
        running.terminate()
        await until(lambda: running.process.poll() is not None)
        await until(lambda: ended(children))
        assert not running.fault()
