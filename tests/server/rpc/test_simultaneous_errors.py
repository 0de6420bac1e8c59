"""Errors of a stream at the same moment: one of them is its status, and none is left for the event loop to report."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.doubles.made_up_time import run
from support.servers.sessions import LIMITS, generate_config

from voxcpm_grpc.errors import Aborted, InvalidRequest, VoxCPMError
from voxcpm_grpc.request import Conditioning
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.speech.session import Session
from voxcpm_server.values.inputs import Flush, GenerateInput, Text


async def reported(pool: Any, ticks: int, *, cancelled: bool, max_wait: float) -> list[dict[str, Any]]:
    """The reports of an event loop on which a session fails in its reader, and elsewhere `ticks` callbacks before."""
    loop = asyncio.get_running_loop()
    reports: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reports.append(context))
    loop.call_later(1000, lambda: None)  # keeps the clock running
    begun, fail = asyncio.Event(), asyncio.Event()

    async def send(message: pb.AudioChunk) -> None:
        begun.set()
        await fail.wait()
        raise Aborted("the client took no message")

    async def messages() -> AsyncIterator[GenerateInput]:
        yield Text("One is here.")
        yield Flush("", False)
        yield Text("Two is here.")
        await begun.wait()
        if cancelled:
            tasks[0].cancel()
        else:
            fail.set()
        for _ in range(ticks):
            await asyncio.sleep(0)
        raise InvalidRequest("a message is wrong")

    async def encode(samples: Any) -> Any:
        raise AssertionError("nothing is encoded")

    session = Session(
        generate_config(max_wait=max_wait),
        Conditioning(),
        "",
        pool=pool,
        encode=encode,
        limits=LIMITS,
        request_id="",
        remaining=lambda: None,
        send=send,
    )
    tasks = [asyncio.create_task(session.run(None, messages()))]
    await asyncio.wait(tasks)
    assert tasks[0].cancelled() if cancelled else isinstance(tasks[0].exception(), VoxCPMError)
    del session
    tasks.clear()
    gc.collect()
    return reports


@pytest.mark.parametrize("cancelled", [False, True], ids=["a write fails", "the call is cancelled"])
@pytest.mark.parametrize("max_wait", [0.0, 5.0], ids=["read by the reader", "read by a task of its own"])
@pytest.mark.parametrize("ticks", range(8))
def test_no_error_is_left_to_the_event_loop(fake, ticks, max_wait, cancelled):
    assert run(reported(fake(), ticks, cancelled=cancelled, max_wait=max_wait)) == []
