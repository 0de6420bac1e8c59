"""The limit of the wait for a slot leaves out the time in which a call waits for its text."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from support.doubles import made_up_time

from voxcpm_grpc.errors import Exhausted
from voxcpm_server.speech.calls.slot_wait import LOOK_SECONDS, SlotWait

LIMIT = 5.0


@dataclass
class Engines:
    """A pool and its only call. Times are seconds from the start of the call.

    enough: when its text is enough for a slot
    known: when the engine first says if it is
    looks: at the call
    """

    enough: float
    known: float = 0.0
    looks: list[float] = field(default_factory=list)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def needs_text(self) -> bool | None:
        return self.now < self.enough if self.now >= self.known else None

    @property
    def waited_seconds(self) -> float:
        return self.now if self.now < self.known else max(0.0, self.now - self.enough)

    def waits_for_engine(self, call: object) -> bool:
        self.looks.append(self.now)
        return False

    def waits_for_slot(self, call: object) -> bool:
        return True


async def wait(engines: Engines, limit: float, slot: float) -> float:
    """Wait for a slot that comes at a time. Returns the time of the first event."""

    async def event() -> Any:
        await asyncio.sleep(slot)
        return engines.now

    waiting = SlotWait(cast(Any, engines), cast(Any, engines), limit, limit)
    return cast(float, await waiting.first_event(event()))


def test_a_slot_that_comes_soon_after_the_text_is_in_time():
    engines = Engines(enough=2 * LIMIT - 0.01)
    assert made_up_time.run(wait(engines, LIMIT, slot=2 * LIMIT + 0.1)) == pytest.approx(2 * LIMIT + 0.1)


@pytest.mark.parametrize("enough", [0.0, 0.01, LIMIT - 0.01, 2 * LIMIT - 0.01])
def test_a_slot_that_does_not_come_is_given_up_when_the_call_had_text_for_so_long(enough):
    engines = Engines(enough=enough)
    with pytest.raises(Exhausted, match="no slot became free within 5 s"):
        made_up_time.run(wait(engines, LIMIT, slot=100))
    assert engines.looks[-1] == pytest.approx(enough + LIMIT, abs=LOOK_SECONDS)


def test_a_call_that_waits_for_text_is_looked_at_now_and_then():
    """Also if its limit is next to nothing."""
    engines = Engines(enough=10.0)
    with pytest.raises(Exhausted):
        made_up_time.run(wait(engines, 1e-9, slot=100))
    assert len(engines.looks) <= 10.0 / LOOK_SECONDS + 2


def test_a_call_of_which_the_engine_has_not_said_if_it_needs_text_is_not_given_up():
    engines = Engines(enough=LIMIT, known=LIMIT)
    with pytest.raises(Exhausted):
        made_up_time.run(wait(engines, LIMIT / 2, slot=100))
    assert engines.looks[-1] == pytest.approx(1.5 * LIMIT, abs=2 * LOOK_SECONDS)
