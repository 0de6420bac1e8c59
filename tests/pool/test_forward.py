"""A reader that forwards the events of a call gets each chunk when it is delivered, and ends as any reader does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from voxcpm_grpc.errors import Aborted
from voxcpm_grpc.events import Admitted, AudioChunk, Event, Finished, FinishReason
from voxcpm_grpc.ipc.messages import Allow, Append, Cancel
from voxcpm_grpc.pool.engine_call import EngineCall

ADMITTED = Admitted(queue_seconds=0.0, prompt_tokens=1, cached_tokens=0)
FINISHED = Finished(reason=FinishReason.STOP, steps=3, engine_seconds=0.0)
WINDOW = 12


def chunk(index: int) -> AudioChunk:
    return AudioChunk(index=index, samples=np.zeros(4, np.float32), steps=b"step")


class Reader:
    """Forwards the events of a call of an engine, and notes them. `posted` are the commands to the engine."""

    def __init__(self, *, first_limit: int | None = 100, ends: Callable[[Event], bool] = lambda event: False) -> None:
        self.events: list[Event] = []
        self.posted: list[Allow | Append | Cancel] = []
        self.call: EngineCall[Event] = EngineCall(
            "call", lambda call: Cancel(call.id), window=WINDOW, first_limit=first_limit
        )
        self.call.start("call", "engine", self.posted.append)
        self._ends = ends

    def receive(self, event: Event) -> bool:
        self.events.append(event)
        return self._ends(event)

    async def begun(self) -> asyncio.Task[bool]:
        """A task that forwards, and waits for an event."""
        task = asyncio.create_task(self.call.forward(self.receive))
        await turns()
        return task

    @property
    def indices(self) -> list[int]:
        return [event.index for event in self.events if isinstance(event, AudioChunk)]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_chunk_is_passed_when_it_is_delivered():
    reader = Reader()
    reader.call.deliver(ADMITTED)
    reader.call.deliver(chunk(0))
    task = await reader.begun()
    assert reader.indices == [0]
    reader.call.deliver(chunk(1))
    assert reader.indices == [0, 1]
    reader.call.deliver(FINISHED)
    assert await task is False
    assert [type(event) for event in reader.events] == [Admitted, AudioChunk, AudioChunk, Finished]
    assert await reader.call.forward(reader.receive) is False
    assert not reader.posted


async def test_chunks_wait_for_a_receiver_that_has_ended_the_forwarding():
    reader = Reader(ends=lambda event: isinstance(event, AudioChunk) and event.index == 1)
    task = await reader.begun()
    for index in range(4):
        reader.call.deliver(chunk(index))
    assert reader.indices == [0, 1]
    assert await task is True
    reader.call.deliver(FINISHED)
    assert await reader.call.forward(reader.receive) is False
    assert reader.indices == [0, 1, 2, 3]


async def test_the_window_moves_with_the_chunks_that_are_passed():
    reader = Reader(first_limit=None)
    task = await reader.begun()
    for index in range(WINDOW // 2):
        reader.call.deliver(chunk(index))
    assert reader.posted == [Allow("call", WINDOW + WINDOW // 2)]
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_an_error_of_the_call_follows_its_chunks():
    reader = Reader()
    task = await reader.begun()
    reader.call.deliver(chunk(0))
    reader.call.fail(Aborted("the engine was lost"))
    with pytest.raises(Aborted, match="the engine was lost"):
        await task
    assert reader.indices == [0]


async def test_an_error_of_the_receiver_reaches_its_task_and_cancels_the_call():
    def fail(event: Event) -> bool:
        raise ValueError("cannot take it")

    reader = Reader(ends=fail)
    task = await reader.begun()
    reader.call.deliver(chunk(0))  # without an error for the engine's other calls
    with pytest.raises(ValueError, match="cannot take it"):
        await task
    assert reader.posted == [Cancel("call")]


async def test_nothing_is_passed_after_a_cancel():
    reader = Reader()
    task = await reader.begun()
    reader.call.cancel()
    reader.call.deliver(chunk(0))
    assert await task is False
    assert not reader.events
    assert reader.posted == [Cancel("call")]


async def test_a_cancelled_reader_cancels_the_call():
    reader = Reader()
    task = await reader.begun()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reader.posted == [Cancel("call")]
