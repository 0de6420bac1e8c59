"""The audio that a stream makes before its client takes it is limited, and all of the room comes back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.doubles.fake_engine import request
from support.servers.sessions import IDLE_SECONDS, SlowClient, session
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.events import AudioChunk, Event
from voxcpm_grpc.ipc.messages import Allow, Append, Cancel, Submit
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.speech.window import Window
from voxcpm_server.values.inputs import Continuity, GenerateInput, Interrupt, Text

STEP, RATE = 960, 48_000  # samples of a step of the fake engine, and its output rate
SENTENCES = " ".join(f"Sentence {number} is " + "here " * (number % 4) + "now." for number in range(12))
LAST = "The last sentence."
SILENCE = np.zeros(STEP, np.float32)


@dataclass(eq=False)
class Engine:
    """An engine with a single call of a stream, which makes a chunk when it is told to, and knows its limit."""

    call: EngineCall[Event]
    held_back: bool = False  # the audio waits for the end of the call
    limit: int = 0
    made: int = 0

    @classmethod
    def start(cls, window: Window, *, held_back: bool = False) -> Engine:
        call: EngineCall[Event] = EngineCall(
            "call",
            lambda call: Submit(request("call", 10**6), call.limit),
            window=window.size,
            first_limit=window.next_limit,
        )
        engine = cls(call, held_back)
        submit = call.start("call", "engine", engine.receive)
        assert isinstance(submit, Submit)
        engine.limit = submit.limit
        window.open(call)
        return engine

    def receive(self, command: Allow | Append | Cancel) -> None:
        if isinstance(command, Allow):
            assert command.limit > self.limit, "a limit never falls"
            self.limit = command.limit

    @property
    def paused(self) -> bool:
        return self.made >= self.limit

    def make(self) -> None:
        self.call.deliver(AudioChunk(index=self.made, samples=SILENCE))
        self.made += 1


@dataclass
class Stream:
    """The engines of a stream, its speaker and its writer, each of which moves when it is told to."""

    window: Window
    ahead: bool
    engines: list[Engine] = field(default_factory=list)  # of open calls, the oldest first
    spoken: int = 0  # chunks of the oldest call in the output
    unsent: int = 0  # chunks in the output
    excess: int = 0  # those of calls that were held back

    def may_start(self) -> bool:
        return len(self.engines) <= self.ahead and self.window.next_limit > 0

    def start(self, *, held_back: bool = False) -> None:
        self.engines.append(Engine.start(self.window, held_back=held_back and not self.engines))
        self.excess = 0  # enough was sent

    def make(self, engine: Engine, chunks: int) -> None:
        while chunks and not engine.paused:
            engine.make()
            chunks -= 1
            if engine.held_back:
                engine.call.allow(engine.made + self.window.size)
        self.speak()

    def speak(self) -> None:
        """Move the audio of the oldest call into the output, if there is one that is not held back."""
        if self.engines and not self.engines[0].held_back:
            self._move_audio()

    def _move_audio(self) -> None:
        engine = self.engines[0]
        for _ in range(engine.made - self.spoken):
            self.window.on_chunks(1)
        self.unsent += engine.made - self.spoken
        self.spoken = engine.made

    def send(self, chunks: int) -> None:
        self.unsent -= chunks
        self.excess = min(self.excess, self.unsent)
        self.window.on_sent(chunks)

    def end(self, *, dropped: bool = False) -> None:
        """End the oldest call, perhaps as one that is made again."""
        engine = self.engines[0]
        if not (dropped and engine.held_back):
            self._move_audio()
            self.excess += engine.made * engine.held_back
        self.engines.remove(engine)
        self.window.close(engine.call)
        self.spoken = 0
        self.speak()

    def interrupt(self) -> None:
        for engine in self.engines:
            self.window.close(engine.call)
        self.engines.clear()
        self.spoken = 0
        self.send(self.unsent)

    @property
    def most(self) -> int:
        """Chunks that wait, without those that were held back, when each call has made all that it may now."""
        made = sum(engine.limit for engine in self.engines if not engine.held_back)
        held = bool(self.engines) and self.engines[0].held_back
        return made + self.unsent - self.excess - (0 if held else self.spoken)


ACTIONS = "start", "start and hold back", "make", "make ahead", "send", "end", "make again", "interrupt"
STEPS = st.tuples(st.sampled_from(ACTIONS), st.integers(1, 9))


@settings(max_examples=60)
@given(st.integers(1, 9), st.booleans(), st.booleans(), st.lists(STEPS, min_size=9))
def test_no_more_chunks_wait_than_the_window_has_and_no_stream_is_stuck(size, ahead, eager, steps):
    """In any order of chunks that are made, sent and dropped, and of calls that start, perhaps at once, and end."""

    async def play() -> None:
        stream = Stream(Window(size, ahead=ahead), ahead)
        for action, chunks in steps:
            match action:
                case "start" | "start and hold back" if stream.may_start():
                    stream.start(held_back=action != "start")
                case "make" | "make ahead" if stream.engines:
                    stream.make(stream.engines[0 if action == "make" else -1], chunks)
                case "send":
                    stream.send(min(chunks, stream.unsent))
                case "end" | "make again" if stream.engines:
                    stream.end(dropped=action == "make again")
                case "interrupt":
                    stream.interrupt()
            while eager and stream.may_start():
                stream.start()
            assert stream.most <= size
            assert stream.window.unsent == stream.unsent
        stream.send(stream.unsent)
        assert stream.may_start() if not stream.engines else not stream.engines[0].paused

    asyncio.run(play())


async def test_two_calls_share_the_window_of_a_stream():
    window = Window(5, ahead=True)
    first, second = Engine.start(window), Engine.start(window)
    assert (first.limit, second.limit, window.next_limit) == (3, 2, 0)
    window.on_chunks(1)
    window.on_sent(1)
    assert (first.call.limit, second.call.limit) == (4, 2), "the oldest call gets what was sent"
    window.close(first.call)
    assert (second.call.limit, window.next_limit) == (3, 2), "and its successor what it did not use"
    window.close(second.call)
    assert window.next_limit == 3


async def test_a_call_alone_gets_the_whole_window():
    window = Window(5, ahead=False)
    assert Engine.start(window).limit == 5
    assert window.next_limit == 0


async def test_a_window_of_one_chunk_still_lets_one_through():
    window = Window(1, ahead=True)
    assert Engine.start(window).limit == 1
    assert window.next_limit == 0


async def test_a_call_waits_until_earlier_audio_is_sent():
    window = Window(2, ahead=False)
    engine = Engine.start(window)
    for _ in range(2):
        window.on_chunks(1)
    window.close(engine.call)
    waiting = asyncio.create_task(window.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    window.on_sent(1)
    async with asyncio.timeout(HANG_SECONDS):
        await waiting
    assert window.next_limit == 1


class CountingClient(SlowClient):
    """Takes a second for each message, and records how many chunks were made and not yet sent at that moment."""

    def __init__(self, pool: Any) -> None:
        super().__init__(10**9)
        self.pool = pool
        self.unsent: list[int] = []

    async def send(self, message: pb.AudioChunk) -> None:
        await asyncio.sleep(1.0)
        self.unsent.append(self.pool.steps - samples_of(self.received) // STEP)
        await super().send(message)


def samples_of(messages: list[pb.AudioChunk]) -> int:
    return sum(message.sample_count for message in messages)


@pytest.mark.parametrize("continuity", list(Continuity))
@pytest.mark.parametrize("chunks", [1, 2, 20])
def test_a_client_that_reads_slowly_stops_the_engine(fake, continuity, chunks):
    """Segments are shorter and longer than the limit. The client gets all of the audio."""
    client = CountingClient(fake())
    lead = chunks * STEP / RATE
    sent = session(client.pool, [Text(SENTENCES)], client=client, continuity=continuity, max_lead=lead)
    assert max(client.unsent) == chunks
    assert samples_of(sent) == len(SENTENCES) * STEP


def test_an_interrupt_gives_back_the_room_of_dropped_audio(fake):
    client = CountingClient(fake())
    interrupts: list[GenerateInput | float] = [Text(SENTENCES), 3.0, Interrupt("")]
    script = [*interrupts * 5, Text(LAST)]
    sent = session(client.pool, script, client=client, continuity=Continuity.INDEPENDENT, max_lead=4 * STEP / RATE)
    assert samples_of([message for message in sent if message.turn_index == 5]) == len(LAST) * STEP
    assert max(client.unsent) <= 4 + 5, "a dropped chunk counts as unsent here, once for each interrupt"


def leads(pool: Any) -> list[float]:
    return [request.lead_seconds for request in pool.requests]


def test_a_segment_says_how_much_audio_its_listener_has_left(fake):
    pool = fake()
    session(pool, [Text("One sentence. Another one. "), 0.1, Text("The last.")])
    made = [len(request.text) * STEP / RATE for request in pool.requests]
    assert leads(pool) == pytest.approx([0.0, made[0] - 0.1, made[0] + made[1] - 0.1], abs=0.001)


def test_audio_that_a_slow_client_has_not_taken_counts_as_left(fake):
    pool, client = fake(), SlowClient(1)
    script = [Text("One sentence. "), IDLE_SECONDS / 2, Text("Another one."), client.resume]
    session(pool, script, client=client)
    assert leads(pool)[1] == pytest.approx(len("One sentence.") * STEP / RATE, abs=0.03)


def test_nothing_is_left_after_an_interrupt(fake):
    pool = fake()
    session(pool, [Text("One long sentence. And "), 0.1, Interrupt(""), Text("Another one.")])
    assert leads(pool) == [0.0, 0.0]
