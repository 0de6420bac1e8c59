"""Nothing that runs beside everything else ends unseen."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

from support.waiting import HANG_SECONDS, NEVER_SECONDS

from voxcpm_grpc.pool.background import all_ended, ended, kept_up

ROOT = Path(__file__).parents[2]

# Where tasks are made otherwise, and who sees how they end.
SEEN = {
    "voxcpm_grpc/pool/background.py": "what is tested here",
    "voxcpm_grpc/pool/host/engine_host.py": "a TaskGroup",
    "voxcpm_grpc/pool/engine_pool.py": "a TaskGroup",
    "voxcpm_grpc/ipc/child_process.py": "awaited by start() and close(); reads are awaited by whoever iterates",
    "voxcpm_grpc/pool/ray/handle.py": "both take every exception to the log and give the engine up",
    "voxcpm_grpc/pool/supervisor.py": "a reader that fails is a lost engine",
    "server/voxcpm_server/rpc/call.py": "reads and writes are awaited by whoever reads and writes",
    "server/voxcpm_server/speech/session.py": "a task that fails ends its stream",
    "server/voxcpm_server/signals.py": "awaited there",
    "server/voxcpm_server/voices/store/content.py": "a fetch is awaited by whoever wants the voice",
}


async def test_what_fails_begins_again_and_says_so(caplog):
    lives: list[int] = []

    async def work() -> None:
        lives.append(len(lives))
        if len(lives) < 3:
            raise ValueError(f"life {len(lives)}")

    async with asyncio.timeout(HANG_SECONDS):
        await kept_up(work, "the work", again_seconds=0.01)
    assert lives == [0, 1, 2]
    assert [record.message for record in caplog.records] == ["the work failed; it begins again in 0.01 s"] * 2
    assert "ValueError: life 1" in caplog.text


async def test_what_is_cancelled_does_not_begin_again():
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.sleep(NEVER_SECONDS)

    task = kept_up(work, "the work")
    await asyncio.wait_for(begun.wait(), HANG_SECONDS)
    await ended(task, None)
    assert task.cancelled()
    await ended(None)


async def test_what_cannot_be_closed_does_not_keep_the_rest_open(caplog):
    closed = []

    async def close(number: int) -> None:
        if number == 1:
            raise OSError("stuck")
        await asyncio.sleep(0.01)
        closed.append(number)

    await all_ended(close(number) for number in range(3))
    assert closed == [0, 2]
    assert "OSError: stuck" in caplog.text


def makes_tasks(path: Path) -> bool:
    names = {"create_task", "ensure_future"}
    tree = ast.parse(path.read_text("utf-8"))
    return any(isinstance(node, ast.Attribute) and node.attr in names for node in ast.walk(tree))


def sources() -> Iterator[Path]:
    for folder in ("voxcpm_grpc", "server/voxcpm_server"):
        yield from (ROOT / folder).rglob("*.py")


def test_tasks_are_made_where_their_end_is_seen():
    found = {str(path.relative_to(ROOT)) for path in sources() if makes_tasks(path)}
    assert found == set(SEEN), "use engine.background.kept_up, or say here who sees the end of the task"
