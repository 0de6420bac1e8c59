"""The audio that a stream makes before its client takes it is limited, and all of the limit comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.sessions import IDLE_SECONDS, SlowClient, session
from support.waiting import HANG_SECONDS

from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.request import Event
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.speech.lead import Lead
from voxcpm_server.wire.inputs import Continuity, GenerateInput, Interrupt, Text

STEP, RATE = 960, 48_000  # samples of a step of the fake engine, and its output rate
SENTENCES = " ".join(f"Sentence {number} is " + "here " * (number % 4) + "now." for number in range(12))
LAST = "The last sentence."


class Call(EngineCall[Event]):
    """An engine call that only counts its credit: it runs no work and needs no event loop."""

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.granted: list[int] = []

    def grant(self, chunks: int) -> None:
        self.granted.append(chunks)


def opened(lead: Lead) -> Call:
    call = Call(lead.share)
    lead.open(call)
    return call


def test_two_calls_share_the_credit_of_a_stream():
    lead = Lead(5, ahead=True)
    first, second = opened(lead), opened(lead)
    assert (first.credit, second.credit, lead.free) == (2, 2, 1)
    lead.on_chunk(first)
    lead.release(1)
    assert first.granted == [1], "the oldest call gets what comes back"
    lead.close(first)
    assert second.granted == [2], "and its successor what it did not use"
    lead.close(second)
    assert lead.free == 5


def test_a_call_alone_gets_the_whole_credit():
    lead = Lead(5, ahead=False)
    assert opened(lead).credit == 5
    assert lead.free == 0


def test_a_limit_below_a_chunk_still_lets_one_through():
    lead = Lead(1, ahead=True)
    call = opened(lead)
    assert (call.credit, lead.free) == (1, 0)


async def test_a_call_waits_until_earlier_audio_is_sent():
    lead = Lead(2, ahead=False)
    call = opened(lead)
    for _ in range(2):
        lead.on_chunk(call)
    lead.close(call)
    waiting = asyncio.create_task(lead.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    lead.release(1)
    async with asyncio.timeout(HANG_SECONDS):
        await waiting
    assert lead.share == 1


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


def test_an_interrupt_gives_back_the_credit_of_dropped_audio(fake):
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
