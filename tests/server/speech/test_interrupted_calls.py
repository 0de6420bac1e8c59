"""An interrupt ends the calls of its stream at once: audio that arrives after it is not sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
from support.doubles.fake_engine import INFO
from support.servers.sessions import session

from voxcpm_grpc.events import Admitted, AudioChunk, Event
from voxcpm_grpc.ipc.messages import Allow, Append, Cancel
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.request import Request
from voxcpm_server.values.inputs import Flush, Interrupt, Text


class OneCall:
    """A pool with the calls of one stream, which the test delivers to."""

    info = INFO

    def __init__(self) -> None:
        self.calls: list[EngineCall[Event]] = []
        self.posted: list[Allow | Append | Cancel] = []

    def generate(self, request: Request, *, window: int, first_limit: int, **options: Any) -> EngineCall[Event]:
        call: EngineCall[Event] = EngineCall(
            request.id, lambda call: Cancel(call.id), window=window, first_limit=first_limit
        )
        call.start(f"call {len(self.calls)}", "engine", self.posted.append)
        self.calls.append(call)
        return call

    def chunk(self, index: int) -> None:
        self.calls[0].deliver(AudioChunk(index=index, samples=np.full(INFO.samples_per_step, 0.1, np.float32)))


def test_audio_that_arrives_while_an_interrupt_ends_the_speech_is_not_sent():
    pool = OneCall()

    def script() -> Iterator[Any]:
        yield Text("One sentence.")
        yield Flush("", end_turn=False)
        yield 0.1
        pool.calls[0].deliver(Admitted(queue_seconds=0.0, prompt_tokens=1, cached_tokens=0))
        yield 0.1
        pool.chunk(0)
        yield 0.1
        asyncio.get_running_loop().call_soon(pool.chunk, 1)  # before the speaker's task learns of the interrupt
        yield Interrupt("stop")

    sent = session(pool, script())
    assert pool.posted == [Cancel("call 0")]
    assert sum(message.sample_count for message in sent) == INFO.samples_per_step
    (answer,) = [message.interrupted for message in sent if message.HasField("interrupted")]
    assert answer.sent_samples == INFO.samples_per_step
