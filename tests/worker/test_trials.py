"""An engine tries the work that may have ended another one piece by piece."""

from __future__ import annotations

from dataclasses import replace

from support.doubles.fake_engine import FakeEngine, request
from support.engines.toy_engines import TEXT, toy_engine

from voxcpm_grpc.events import AudioChunk, History
from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc.messages import Allow, Begin, CallEvent, Submit, Try, Trying
from voxcpm_grpc.request import Priority, Request, Sampling
from voxcpm_grpc.worker.dispatcher import Dispatcher
from voxcpm_grpc.worker.heartbeat import StepTimer
from voxcpm_grpc.worker.trials import SLOT_SECONDS, STEP_SECONDS, Trials


def submit(id: str, *, lead: float = 0.0, limit: int = 100, chunks: int = 5, batch: bool = False) -> Submit:
    priority = Priority.BATCH if batch else Priority.INTERACTIVE
    asked = replace(request(id, 50), lead_seconds=lead, priority=priority)
    return Submit(asked, limit, 50, History(steps=bytes(4 * chunks), chunks=chunks))


def announced(trials: Trials) -> str | None:
    suspect = trials.announce()
    return suspect and suspect.id


def test_one_at_a_time_and_the_one_whose_listener_runs_dry_first():
    trials = Trials()
    for id, lead, batch in (("later", 3.0, False), ("batch", 0.0, True), ("soon", 0.5, False)):
        trials.hold("front", submit(id, lead=lead, batch=batch))
    tried = []
    while id := announced(trials):
        assert announced(trials) is None, "its front has to know it first"
        assert trials.begin(id, 0.0)
        assert announced(trials) is None, "the trial goes on"
        trials.over("another")
        assert announced(trials) is None
        trials.over(id)
        tried.append(id)
    assert tried == ["soon", "later", "batch"]


def test_a_paused_stream_waits_until_it_may_go_on():
    trials = Trials()
    trials.hold("front", submit("s", limit=5, chunks=5))
    assert announced(trials) is None
    assert trials.defer("s", Allow("s", 6))
    assert announced(trials) == "s"
    suspect = trials.begin("s", 0.0)
    assert suspect and suspect.later == [Allow("s", 6)]
    assert not trials.defer("s", Allow("s", 7)), "the engine has it"


def test_a_dropped_suspect_makes_room():
    trials = Trials()
    for id in "abc":
        trials.hold("front", submit(id))
    first = announced(trials)
    assert first
    trials.drop(first)
    assert trials.begin(first, 0.0) is None
    second = announced(trials)
    assert second and second != first and trials.begin(second, 0.0)
    trials.drop(second)
    assert announced(trials)
    trials.drop_front("front")
    assert not trials.waiting and announced(trials) is None


def test_a_trial_that_takes_too_long_lets_the_next_one_begin():
    trials = Trials()
    for id in "abc":
        trials.hold("front", submit(id))
    trials.begin("a", 100.0)
    trials.check(100.0 + SLOT_SECONDS, busy=True)
    assert announced(trials) is None
    trials.check(100.1 + SLOT_SECONDS, busy=True)
    assert announced(trials) == "b"
    trials.begin("b", 200.0)
    trials.admitted("b", 201.0)
    trials.check(201.0 + STEP_SECONDS, busy=True)
    assert announced(trials) is None
    trials.check(201.0, busy=False)
    assert announced(trials) == "c", "the engine waits for something else, such as text"


def test_an_engine_tries_the_suspects_of_all_fronts_in_turns():
    """A front knows of a trial before it begins, and none begins before the last one has a result."""
    dispatcher, order = Dispatcher(FakeEngine(step_seconds=0.0), StepTimer()), list[str]()
    inbox = [(front, Try(submit(f"{front}{number}"))) for number in range(3) for front in ("first", "second")]
    ended = set[str]()
    while len(ended) < 6:
        reports = dispatcher.run_once((front, encoding.encode(command)) for front, command in inbox)
        inbox = []
        sent = [(front, report) for front, each in reports.items() for report in each]
        ended |= {
            report.id for _, report in sent if isinstance(report, CallEvent) and isinstance(report.body, AudioChunk)
        }
        assert ended <= {*order}, "nothing is done without a trial"
        for front, report in sent:
            if isinstance(report, Trying):
                assert report.id.startswith(front)
                assert ended >= {*order}, "the one before has made a chunk"
                order.append(report.id)
                inbox.append((front, Begin(report.id)))
    assert len({*order}) == 6


def test_the_trial_of_a_stream_that_waits_for_text_is_over_at_once():
    """Also while the engine does other work."""
    dispatcher = Dispatcher(toy_engine(slots=1), StepTimer())
    other = Submit(Request(id="other", text=TEXT, sampling=Sampling(min_steps=400)), 1 << 40)
    open_one = Submit(Request(id="open", text="th", open=True), 1 << 40)
    next_one = Submit(Request(id="next", text=TEXT), 1 << 40)
    commands, reports = [other, Try(open_one), Try(next_one), Begin("open")], list[object]()
    for command in commands:
        reports += dispatcher.run_once([("front", encoding.encode(command))]).get("front", [])
    assert dispatcher.busy
    assert [report.id for report in reports if isinstance(report, Trying)] == ["open", "next"]
