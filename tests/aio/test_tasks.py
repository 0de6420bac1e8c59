"""Background tasks restart after an error, and no task ends unnoticed."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS

from voxcpm_grpc.aio.tasks import cancel_and_wait, close_all, keep_running

ROOT = Path(__file__).parents[2]

# The files that create tasks themselves, each with the reason why an error in such a task is noticed.
ALLOWED = {
    "voxcpm_grpc/aio/tasks.py": "tested here",
    "voxcpm_grpc/pool/engines/host.py": "a TaskGroup",
    "voxcpm_grpc/pool/engine_pool.py": "a TaskGroup",
    "voxcpm_grpc/pool/adapter_catalog.py": "a TaskGroup",
    "voxcpm_grpc/ipc/sockets.py": "the task that iterates the reports awaits the reads",
    "voxcpm_grpc/ipc/process.py": "start() and close() await it",
    "voxcpm_grpc/pool/ray/engine.py": "both tasks log every exception and mark the engine as lost",
    "voxcpm_grpc/pool/engines/supervised.py": "a TaskGroup",
    "voxcpm_grpc/pool/engines/standby.py": "awaited by the task that keeps the process",
    "voxcpm_grpc/pool/engines/supervisor.py": "a reader that fails counts as a lost engine",
    "server/voxcpm_server/app.py": "a pool that is watched for its end raises nothing, and its task is cancelled",
    "server/voxcpm_server/rpc/call.py": "the caller awaits each read and write",
    "server/voxcpm_server/services/reflection.py": "the call awaits each write",
    "server/voxcpm_server/services/server.py": "a TaskGroup",
    "server/voxcpm_server/speech/reader.py": "the reader awaits each read",
    "server/voxcpm_server/speech/session.py": "a task that fails ends its stream",
    "server/voxcpm_server/voices/uploads.py": "a TaskGroup",
    "server/voxcpm_server/auth/tokens.py": "the task logs its errors, and the calls that need its keys await it",
    "server/voxcpm_server/signals.py": "awaited there",
    "server/voxcpm_server/voices/store/content.py": "the callers that need the voice await its fetch",
}


async def test_a_task_that_fails_is_logged_and_starts_again(caplog):
    runs: list[int] = []

    async def work() -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            raise ValueError(f"run {len(runs)}")

    async with asyncio.timeout(HANG_SECONDS):
        await keep_running(work, "the work", retry_seconds=0.01)
    assert runs == [0, 1, 2]
    assert [record.message for record in caplog.records] == ["the work failed; it starts again in 0.01 s"] * 2
    assert "ValueError: run 1" in caplog.text


async def test_a_cancelled_task_does_not_start_again():
    started = asyncio.Event()

    async def work() -> None:
        started.set()
        await asyncio.sleep(NEVER_SECONDS)

    task = keep_running(work, "the work")
    await asyncio.wait_for(started.wait(), HANG_SECONDS)
    await cancel_and_wait(task, None)
    assert task.cancelled()
    await cancel_and_wait(None)


async def test_a_task_that_fails_when_it_is_cancelled_does_not_start_again(caplog):
    runs: list[int] = []

    async def work() -> None:
        runs.append(len(runs))
        try:
            await asyncio.sleep(NEVER_SECONDS)
        finally:
            raise ValueError("it cannot be closed")

    task = keep_running(work, "the work", retry_seconds=0.01)
    await asyncio.sleep(0)
    async with asyncio.timeout(HANG_SECONDS):
        await cancel_and_wait(task)
    assert runs == [0]
    assert "ValueError: it cannot be closed" in caplog.text


async def test_an_error_in_one_close_does_not_stop_the_others(caplog):
    closed = []

    async def close(number: int) -> None:
        if number == 1:
            raise OSError("stuck")
        await asyncio.sleep(0.01)
        closed.append(number)

    await close_all(close(number) for number in range(3))
    assert closed == [0, 2]
    assert "OSError: stuck" in caplog.text


def creates_tasks(path: Path) -> bool:
    names = {"create_task", "ensure_future"}
    tree = ast.parse(path.read_text("utf-8"))
    return any(isinstance(node, ast.Attribute) and node.attr in names for node in ast.walk(tree))


def sources() -> Iterator[Path]:
    for folder in ("voxcpm_grpc", "server/voxcpm_server"):
        yield from (ROOT / folder).rglob("*.py")


def test_tasks_are_created_only_in_files_that_notice_their_errors():
    found = {str(path.relative_to(ROOT)) for path in sources() if creates_tasks(path)}
    assert found == set(ALLOWED), "use pool.background.keep_running, or add the file here with the reason"
