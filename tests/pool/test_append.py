"""Text for a running generation reaches its engine, and whichever replaces that gets all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.doubles.pools import Launcher, everything, pool_of, started
from support.engines.toy import LoadToy, checkpoint
from support.engines.toy_engines import TEXT, toy_engine
from support.engines.toy_family import expected
from support.servers.waiting import until

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.events import AudioChunk, Finished
from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc.messages import Append, CallEvent, Cancel, Command, Detach, Failed, Submit
from voxcpm_grpc.ipc.sockets import OWNER
from voxcpm_grpc.request import Request, Sampling
from voxcpm_grpc.worker.dispatcher import Dispatcher
from voxcpm_grpc.worker.heartbeat import StepTimer

ASK = Request(id="a", text=TEXT, sampling=Sampling(seed=4, min_steps=20))
WORDS = [word + " " for word in TEXT.split()]


def audio(events: list) -> np.ndarray:
    assert isinstance(events[-1], Finished)
    return np.concatenate([event.samples for event in events if isinstance(event, AudioChunk)])


@pytest.fixture(scope="module")
def wanted() -> np.ndarray:
    return expected(ASK, toy_engine(slots=1).info.completed).audio


async def test_text_is_appended_in_parts(tmp_path, wanted):
    async with pool_of(LoadToy(checkpoint(tmp_path))) as pool:
        call = pool.generate(replace(ASK, text="", open=True))
        for number, word in enumerate(WORDS):
            call.append(word, last=number == len(WORDS) - 1)
        assert np.array_equal(audio(await everything(call)), wanted)
        call.append("more", last=True)  # after the end of the call


async def test_another_engine_gets_the_text_so_far(tmp_path, wanted):
    launcher = Launcher([LoadToy(checkpoint(tmp_path))])
    async with started(launcher) as pool:
        call = pool.generate(replace(ASK, text="", open=True), max_wait=300)
        call.append(WORDS[0])
        await until(lambda: call.engine != "")
        launcher.kill()
        call.append(WORDS[1])
        await until(lambda: len(launcher.processes) > 1)
        call.append("".join(WORDS[2:]), last=True)
        assert np.array_equal(audio(await everything(call)), wanted)


def run(dispatcher: Dispatcher, *commands: tuple[str, Command]) -> dict[str, list]:
    """The reports for each front until there is no more work."""
    reports: dict[str, list] = {}
    inbox = [(front, encoding.encode(command)) for front, command in commands]
    while True:
        for front, found in dispatcher.run_once(inbox).items():
            reports.setdefault(front, []).extend(found)
        inbox = []
        if not dispatcher.busy:
            return reports


@pytest.fixture
def dispatcher() -> Dispatcher:
    return Dispatcher(toy_engine(slots=2), StepTimer())


def submitted(id: str, **changes: Any) -> Submit:
    return Submit(replace(ASK, id=id, **changes), 1 << 40)


def test_text_after_the_end_fails_the_request(dispatcher):
    reports = run(dispatcher, ("front", submitted("a")), ("front", Append("a", "more", last=True)))
    [failed] = [report for report in reports["front"] if isinstance(report, Failed)]
    assert isinstance(failed.error(), InvalidRequest) and failed.field == "text"


@pytest.mark.parametrize("end", [("front", Cancel("a")), (OWNER, Detach("front"))], ids=["cancel", "death"])
def test_text_of_a_front_that_has_gone_or_cancelled_is_ignored(dispatcher, wanted, end):
    run(dispatcher, ("front", submitted("a", text="", open=True)))
    run(dispatcher, end)
    late = run(dispatcher, ("front", Append("a", TEXT, last=True)), ("other", submitted("b")))
    assert not any(isinstance(report, CallEvent | Failed) for report in late.get("front", []))
    assert np.array_equal(audio([one.body for one in late["other"] if isinstance(one, CallEvent)]), wanted)
