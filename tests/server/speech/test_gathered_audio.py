"""Audio that the listener does not need yet comes in fewer and longer messages."""

from __future__ import annotations

import asyncio
from itertools import accumulate

import pytest
from support.servers.sessions import SlowClient, session

from voxcpm_grpc.errors import Aborted
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.speech.output import GATHERING_SECONDS
from voxcpm_server.speech.session import RESERVE_SECONDS
from voxcpm_server.speech.stream import MERGED_SECONDS
from voxcpm_server.values.inputs import Flush, Interrupt, Text

RATE, STEP = 48000, 960
CHUNK = STEP / RATE  # seconds
TEXT = "x" * 299 + "."  # a step for each character
SPOKEN = Text(TEXT), Flush("", end_turn=False)


class Listener(SlowClient):
    """Notes the time of each message with audio, in seconds from the first one."""

    def __init__(self) -> None:
        super().__init__(10**9)
        self.times: list[float] = []
        self.lengths: list[float] = []  # seconds
        self._began = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(self, message: pb.AudioChunk) -> None:
        await super().send(message)
        self._loop = asyncio.get_running_loop()
        if message.sample_count:
            self._began = self._began or self._loop.time()
            self.times.append(self.now)
            self.lengths.append(message.sample_count / RATE)

    @property
    def now(self) -> float:
        """Seconds since the first message with audio, also after the end."""
        assert self._loop is not None
        return self._loop.time() - self._began

    @property
    def reserves(self) -> list[float]:
        """The audio that was not played yet when each message arrived, without that message."""
        before = [0.0, *accumulate(self.lengths)]
        return [max(0.0, had - time) for had, time in zip(before, self.times, strict=False)]


def test_messages_are_longer_when_the_listener_has_enough_audio(fake):
    pool, listener = fake(step_seconds=CHUNK / 4), Listener()
    sent = session(pool, [Text(TEXT)], client=listener)
    assert sent[-1].summary.total_samples == len(TEXT) * STEP
    messages = list(zip(listener.lengths, listener.reserves, strict=True))[:-1]
    early = [length for length, reserve in messages if reserve < RESERVE_SECONDS]
    later = [length for length, reserve in messages if reserve > 1.5 * RESERVE_SECONDS]
    assert early == pytest.approx([CHUNK] * len(early))
    assert later == pytest.approx([MERGED_SECONDS] * len(later))
    assert len(early) > 50
    assert len(later) > 5


def test_the_last_audio_waits_for_nothing(fake):
    pool, listener = fake(step_seconds=CHUNK / 4), Listener()
    session(pool, [*SPOKEN, 100.0], client=listener)
    assert listener.times[-1] == pytest.approx((len(TEXT) - 1) * CHUNK / 4, abs=1e-3)


def test_audio_waits_only_for_a_moment_if_the_engine_makes_no_more(fake):
    pool, listener = fake(step_seconds=CHUNK / 4, hold_after=150), Listener()
    made = []

    def look() -> None:
        made.append((pool.steps, sum(listener.lengths)))
        pool.release()

    last = 150 * CHUNK / 4
    session(pool, [*SPOKEN, last + GATHERING_SECONDS, look], client=listener)
    assert made == [(150, pytest.approx(150 * CHUNK))]


def test_audio_does_not_wait_when_the_listener_has_little(fake):
    """The engine is hardly faster than playback, so the reserve grows slowly."""
    pool, listener = fake(step_seconds=CHUNK * 0.9), Listener()
    session(pool, [Text(TEXT)], client=listener)
    assert max(listener.reserves) < RESERVE_SECONDS
    assert listener.lengths == pytest.approx([CHUNK] * len(TEXT))


def test_a_small_lead_is_not_held_back(fake):
    """Held audio would use up the window of the stream."""
    pool, listener = fake(step_seconds=CHUNK / 4), Listener()
    session(pool, [Text(TEXT)], client=listener, max_lead=CHUNK)
    assert listener.lengths == pytest.approx([CHUNK] * len(TEXT))
    assert listener.times[-1] == pytest.approx((len(TEXT) - 1) * CHUNK / 4, abs=1e-3)


def test_an_interrupt_drops_audio_that_waits(fake):
    pool, listener = fake(step_seconds=CHUNK / 4), Listener()
    sent = session(pool, [*SPOKEN, 190.5 * CHUNK / 4, Interrupt("a"), Text("Next.")], client=listener)
    (position,) = [message.interrupted.sent_samples for message in sent if message.HasField("interrupted")]
    assert position == sum(message.sample_count for message in sent if message.turn_index == 0)
    assert 170 * STEP < position < 190 * STEP


def test_an_error_ends_the_wait_of_the_audio_before_it(fake):
    pool, listener = fake(step_seconds=CHUNK / 4, failures={TEXT: (190, Aborted("the engine was lost"))}), Listener()
    with pytest.raises(Aborted):
        session(pool, [*SPOKEN, 100.0], client=listener)
    assert listener.now == pytest.approx(190 * CHUNK / 4, abs=1e-3)
    assert sum(listener.lengths) == pytest.approx(190 * CHUNK)
