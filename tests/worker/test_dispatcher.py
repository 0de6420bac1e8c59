"""The loop of an engine's process: its dispatcher and its sockets."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import zmq
from support.doubles.fake_engine import FakeEngine, carries, request
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, wait_until

from voxcpm_grpc.errors import Exhausted, Internal, StartupError
from voxcpm_grpc.events import AudioChunk, Finished
from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc import messages as m
from voxcpm_grpc.ipc.sockets import OWNER, Addresses, EngineSocket
from voxcpm_grpc.request import Request, Role, Sampling
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.worker import dispatcher, gathering, main
from voxcpm_grpc.worker.dispatcher import Dispatcher
from voxcpm_grpc.worker.heartbeat import StepTimer

ADDRESSES = Addresses("inproc://commands", "inproc://reports", "inproc://fronts")


class Owner:
    """The owner of an engine, whose loop runs in a thread."""

    def __init__(self, engine: FakeEngine, context: zmq.Context) -> None:
        self.context = context
        self.commands, self.reports = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        self.commands.bind(ADDRESSES.commands)
        self.reports.bind(ADDRESSES.reports)
        self.error: Exception | None = None
        self.address = ""
        self.listens = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(engine,), daemon=True)
        self.thread.start()

    def _run(self, engine):
        with EngineSocket(self.context, ADDRESSES) as socket:
            self.address = socket.address
            self.listens.set()
            try:
                main.run(engine, StepTimer(), socket)
            except Exception as error:
                self.error = error

    def post(self, *commands: m.Command) -> None:
        for command in commands:
            self.commands.send(encoding.encode(command))

    def close(self) -> None:
        with contextlib.suppress(zmq.Again):  # the engine has ended
            self.commands.send(encoding.encode(m.Stop()), zmq.DONTWAIT)
        self.thread.join(HANG_SECONDS)
        assert not self.thread.is_alive()
        self.commands.close(0)
        self.reports.close(0)


class Front:
    """A front of the engine."""

    def __init__(self, owner: Owner, name: str = "front") -> None:
        assert owner.listens.wait(HANG_SECONDS)
        address, key = owner.address.split("#")
        self.socket = owner.context.socket(zmq.DEALER)
        self.socket.identity = (key + name).encode()
        self.socket.rcvtimeo = int(1000 * HANG_SECONDS)
        self.socket.linger = 0
        self.socket.connect(address)
        self.stats: list[m.EngineStats] = []

    def post(self, *commands: m.Command) -> None:
        for command in commands:
            self.socket.send(encoding.encode(command))

    def batch(self) -> list[m.Report]:
        """The reports of the next message, without the statistics."""
        while True:
            reports = encoding.decode_reports(self.socket.recv())
            self.stats += [report for report in reports if isinstance(report, m.EngineStats)]
            others: list[m.Report] = [report for report in reports if not isinstance(report, m.EngineStats)]
            if others:
                return others

    def external_steps(self) -> float:
        """The steps of the next report on the work for other fronts."""
        while True:
            if found := [report for report in self.batch() if isinstance(report, m.ExternalLoad)]:
                assert bool(found[-1].streams) == bool(found[-1].steps)
                return found[-1].steps

    def until_end_of(self, *ids: str) -> list[m.Report]:
        reports, open_ids = [], set(ids)
        while open_ids:
            batch = self.batch()
            reports += batch
            open_ids -= {report.id for report in batch if isinstance(report, m.Failed | m.CallEvent) and ends(report)}
        return reports


def ends(report: m.Report) -> bool:
    return isinstance(report, m.Failed) or carries(report, Finished)


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def owner(engine):
    with zmq.Context() as context:
        owner = Owner(engine, context)
        yield owner
        owner.close()


@pytest.fixture
def front(owner):
    front = Front(owner)
    yield front
    front.socket.close()


def kinds(reports):
    return [type(report.body if isinstance(report, m.CallEvent) else report).__name__ for report in reports]


def sleeps(engine: FakeEngine) -> bool:
    """True if the loop waits for messages. A loop that does not wait checks all the time whether the engine is busy."""
    checks = engine.busy_checks
    time.sleep(0.3)
    return engine.busy_checks == checks


def test_a_request_is_admitted_makes_audio_and_finishes(front):
    front.post(m.Submit(request("a", 3), 10))
    reports = front.until_end_of("a")
    assert kinds(reports) == ["Admitted", "AudioChunk", "AudioChunk", "AudioChunk", "Finished"]
    assert [report.body.index for report in reports if carries(report, AudioChunk)] == [0, 1, 2]


def test_the_reports_of_a_step_arrive_in_one_message(front, engine, tmp_path):
    may_continue = tmp_path / "may continue"  # when all requests are admitted
    front.post(*(m.Submit(request(f"r{i}", 2, f"after {may_continue}"), 10) for i in range(5)))
    sizes = []
    while sum(sizes) < 5:
        sizes.append(len(front.batch()))
    may_continue.touch()
    while sum(sizes) < 5 * 4:
        sizes.append(len(front.batch()))
    assert max(sizes) >= 5
    assert len(sizes) <= engine.steps


def test_an_idle_loop_sleeps_until_a_message_arrives(front, engine):
    front.post(m.Submit(request("a", 1), 10))
    front.until_end_of("a")
    wait_until(lambda: sleeps(engine))
    front.post(m.Submit(request("b", 1), 10))
    front.until_end_of("b")


@pytest.mark.parametrize("others", [0, 1])
def test_audio_of_a_stream_that_pauses_waits_for_no_more(front, others, monkeypatch):
    """Also while the engine goes on with another stream. The listener has minutes of audio left."""
    monkeypatch.setattr(gathering, "WAIT_SECONDS", NEVER_SECONDS)
    front.post(*(m.Submit(request("other", 10**6), 10**6) for _ in range(others)))
    front.post(m.Submit(replace(request("a", 1000), lead_seconds=600.0), 30))
    ends = [0]
    while ends[-1] < 30:
        ends += [one.body.end for one in front.batch() if carries(one, AudioChunk) and one.id == "a"]
    assert ends[1] == 1 and ends[-1] == 30
    assert len(ends) < 12 and max(after - before for before, after in pairwise(ends)) <= 15
    front.post(m.Allow("a", 40))
    while ends[-1] < 40:
        ends += [one.body.end for one in front.batch() if carries(one, AudioChunk) and one.id == "a"]
    assert ends[-1] == 40


def test_a_stream_pauses_at_its_limit_and_lets_the_loop_sleep(front, engine):
    front.post(m.Submit(request("a", 10), 4))
    chunks = 0
    while chunks < 4:
        chunks += sum(carries(report, AudioChunk) for report in front.batch())
    wait_until(lambda: sleeps(engine))
    assert engine.streams["a"].made == 4
    front.post(m.Allow("a", 10))
    assert kinds(front.until_end_of("a")) == ["AudioChunk"] * 6 + ["Finished"]


def test_cancel_ends_a_stream(front, engine):
    engine.step_seconds = 0.005
    front.post(m.Submit(request("a", 100_000), 100_000))
    front.batch()
    front.post(m.Cancel("a"), m.Cancel("unknown"), m.Submit(request("b", 1), 1))
    front.until_end_of("b")
    assert not engine.streams
    assert engine.cancelled == 1


def test_a_refused_request_fails_with_the_error_of_the_engine(front):
    front.post(m.Submit(request("a", 3, "refuse"), 10))
    [failed] = front.until_end_of("a")
    assert isinstance(failed.error(), Exhausted)
    assert failed.error().retry_after == 2.5


def test_the_lines_about_a_request_have_the_request_id_of_its_rpc(caplog):
    caplog.set_level(logging.DEBUG, "voxcpm_grpc.worker")
    loop = Dispatcher(FakeEngine(step_seconds=0.0), StepTimer())
    texts = {"a": "Hello.", "b": "refuse", "c": "fault", "d": "fail"}
    inbox = [m.Submit(replace(request(id, 1, text), log_id=f"rpc-{id}"), 10) for id, text in texts.items()]
    inbox += [m.Encode("e", np.zeros(320, np.float32), Role.REFERENCE, "rpc-e")]
    loop.run_once([("front", encoding.encode(one)) for one in inbox])
    while loop.busy:
        loop.run_once([])
    lines = [(record.levelno, record.getMessage()) for record in caplog.records]
    for expected in (
        (logging.DEBUG, "admitted request=a id=rpc-a queue_seconds=0.000"),
        (logging.DEBUG, "finished request=a id=rpc-a steps=1 reason=max_steps"),
        (logging.WARNING, "refused request=b id=rpc-b code=RESOURCE_EXHAUSTED"),
        (logging.ERROR, "a command failed request=c id=rpc-c"),
        (logging.WARNING, "failed request=d id=rpc-d code=INTERNAL"),
        (logging.DEBUG, "finished request=e id=rpc-e"),
    ):
        assert expected in lines, lines


def test_an_error_in_a_command_ends_that_request_only(front, engine, caplog):
    front.post(m.Submit(request("good", 20), 100), m.Submit(request("bad", 20, "fault"), 100))
    reports = front.until_end_of("good", "bad")
    [failed] = [report for report in reports if isinstance(report, m.Failed)]
    assert failed.id == "bad"
    assert isinstance(failed.error(), Internal)
    assert "secret" not in failed.message
    assert sum(carries(report, AudioChunk) and report.id == "good" for report in reports) == 20
    assert "bad" not in engine.streams, "a request that failed must not keep its slot"
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "bad" in record.getMessage()
    assert "a secret of the implementation" in caplog.text


def test_a_command_that_cannot_be_decoded_ends_that_request_only(front):
    good = encoding.encode(m.Submit(Request(id="x", text="", sampling=Sampling(cfg_value=2.0)), 5))
    broken = good.replace(b"cfg_value", b"cfg_velue").replace(b"\xa4text", b"\xa4taxt")
    assert broken != good
    front.socket.send(broken)
    front.socket.send(b"\xc1")  # it has no id, so it can only be logged
    front.post(m.Submit(request("b", 1), 5))
    reports = front.until_end_of("x", "b")
    assert [report.id for report in reports if isinstance(report, m.Failed) and report.id] == ["x"]


def test_a_request_that_fails_in_a_step_is_reported(front):
    front.post(m.Submit(request("a", 3, "fail"), 10))
    _, failed = front.until_end_of("a")
    assert isinstance(failed, m.Failed)
    assert failed.code == "INTERNAL"


def test_an_error_of_a_step_ends_the_loop(engine):
    with zmq.Context() as context:
        owner = Owner(engine, context)
        front = Front(owner)
        front.post(m.Submit(request("a", 3, "crash"), 10))
        owner.thread.join(HANG_SECONDS)
        assert isinstance(owner.error, RuntimeError)
        front.socket.close()
        owner.close()


@pytest.fixture
def fronts(owner, engine):
    """Two fronts that the engine knows."""
    engine.step_seconds = 0.002
    fronts = [Front(owner, name) for name in "ab"]
    for one in fronts:
        one.post(m.Keep(()), m.Check(request("check", 1)))
        one.batch()
    yield fronts
    for one in fronts:
        one.socket.close()


def test_each_front_receives_the_reports_of_its_own_requests(front, fronts):
    a, b = fronts
    a.post(m.Submit(request("1", 20), 100))
    b.post(m.Submit(request("2", 30), 100))
    front.post(m.Submit(request("3", 10), 100))
    for one, id, steps in ((front, "3", 10), (a, "1", 20), (b, "2", 30)):
        reports = [report for report in one.until_end_of(id) if not isinstance(report, m.ExternalLoad)]
        assert {report.id for report in reports} == {id}
        assert sum(carries(report, AudioChunk) for report in reports) == steps


def test_fronts_receive_the_load_of_other_fronts(fronts):
    a, b = fronts
    a.post(m.Submit(request("1", 1000), 10_000, work=1000.0))
    first = b.external_steps()
    assert 900 < first <= 1000
    assert b.external_steps() < first
    b.post(m.Submit(request("2", 200), 1000, work=200.0))
    while a.external_steps() == 0:
        pass
    a.post(m.Cancel("1"))
    while b.external_steps() > 0:
        pass


def test_a_detached_front_leaves_no_work_behind(owner, front, fronts, engine, tmp_path):
    a, b = fronts
    engine.pieces_after = may_continue = tmp_path / "may continue"
    a.post(m.Submit(request("1", 100_000), 100_000), m.Encode("2", np.zeros(10**6, np.float32), Role.PROMPT))
    b.post(m.Submit(request("3", 200, f"after {may_continue}"), 1000))
    while not any(carries(report, AudioChunk) for report in a.batch()):
        pass
    owner.post(m.Detach("a"), m.Detach("unknown"))
    wait_until(lambda: engine.cancelled)
    front.post(m.Submit(request("4", 1), 1))
    front.until_end_of("4")
    may_continue.touch()
    assert any(carries(report, Finished) for report in b.until_end_of("3"))
    assert not engine.streams and not engine.jobs
    assert engine.cancelled == 1


def test_messages_that_arrive_during_a_step_are_handled_before_the_next(engine, monkeypatch):
    """The wait for that step counts as time in a step."""
    dispatcher, events = Dispatcher(engine, timer := StepTimer()), []
    inbox = []

    def wait():
        inbox.append(("front", encoding.encode(m.Submit(request("late", 3), 9))))
        timer.heartbeat()
        time.sleep(0.01)
        events.append(("waited", timer.heartbeat().busy_seconds > 0))

    def step():
        events.append(("stepped", list(engine.streams)))
        return []

    monkeypatch.setattr(engine, "collect", wait)
    monkeypatch.setattr(engine, "step", step)
    dispatcher.run_once(message for message in inbox)
    assert events == [("waited", True), ("stepped", ["late"])]


def test_messages_of_a_detached_front_are_dropped(engine):
    """They may still wait unread when the host notices that the front has died."""
    dispatcher = Dispatcher(engine, StepTimer())
    commands = [
        ("a", m.Keep(())),
        (OWNER, m.Detach("a")),
        ("a", m.Submit(request("1", 9), 4)),
        ("a", m.Decode("2", {"latents": np.zeros(3)})),
    ]
    dispatcher.run_once([(front, encoding.encode(command)) for front, command in commands])
    assert not engine.streams and not engine.jobs, "they would never be allowed more and never be cancelled"


def test_a_detached_front_is_no_load_for_the_others(owner, fronts):
    a, b = fronts
    a.post(m.Submit(request("1", 100_000), 100_000, work=1000.0))
    while b.external_steps() == 0:
        pass
    owner.post(m.Detach("a"))
    while b.external_steps() > 0:
        pass


def test_the_error_names_a_checkpoint_that_does_not_exist(tmp_path):
    with pytest.raises(StartupError, match="nowhere"):
        main.LoadEngine(Path(tmp_path / "nowhere"), "x", EngineSettings(device="cpu"))()


@pytest.mark.parametrize(
    ("error", "message", "logged"),
    [
        (StartupError("the checkpoint is incomplete"), "the checkpoint is incomplete", 0),
        (Exhausted("the GPU is too small"), "the GPU is too small", 0),
        (KeyError("weight"), "the engine could not start: KeyError: 'weight'", 1),
    ],
)
def test_the_reason_of_a_start_that_fails_is_reported_and_what_nobody_expects_is_logged(caplog, error, message, logged):
    def fail():
        raise error

    assert main.start_engine(fail, StepTimer()) == (None, m.StartFailed(message))
    assert sum(record.exc_info is not None for record in caplog.records) == logged


def test_a_message_for_fronts_is_logged_and_changes_nothing(caplog):
    loop = Dispatcher(FakeEngine(step_seconds=0.0), StepTimer())
    loop.run_once([(OWNER, encoding.encode(m.EngineLost("engine", 1.0)))])
    assert [record.getMessage() for record in caplog.records] == ["an engine received EngineLost, which is for fronts"]
    assert not loop.stopped


def test_debug_lines_about_steps_come_once_a_second(monkeypatch, caplog):
    now = [100.0]
    monkeypatch.setattr(dispatcher, "monotonic", lambda: now[0])
    caplog.set_level(logging.DEBUG, "voxcpm_grpc.worker")
    engine = FakeEngine(step_seconds=0.0)
    loop = Dispatcher(engine, StepTimer())
    loop.run_once([("front", encoding.encode(m.Submit(request("a", 1000), 1000)))])
    for _ in range(31):
        now[0] += 0.125
        loop.run_once([])
    lines = [line for record in caplog.records if (line := record.getMessage()).startswith("steps=")]
    assert len(lines) == 3, lines
    assert lines[1].startswith("steps=8 seconds=1.0 running=1 waiting=0 swapped=0 slots=1/"), lines


def test_a_front_receives_the_statistics_when_the_engine_becomes_idle(front):
    front.post(m.Submit(request("a", 3), 10))
    front.until_end_of("a")
    front.post(m.Submit(request("refused", 1, "refuse"), 1))
    front.until_end_of("refused")
    assert front.stats[-1].stats.running == 0 and front.stats[-1].stats.steps >= 3
    assert front.stats[-1].step_seconds > 0


def test_statistics_that_are_asked_for_follow_all_earlier_commands_in_the_same_round(monkeypatch):
    """Even if the engine is busy with other work, and has reported its statistics just now."""
    monkeypatch.setattr(dispatcher, "monotonic", lambda: 100.0)
    engine = FakeEngine(step_seconds=0.0)
    served = Dispatcher(engine, StepTimer())

    def run(*commands: m.Command) -> list[m.EngineStats]:
        reports = served.run_once([("front", encoding.encode(command)) for command in commands])
        return [report for report in reports["front"] if isinstance(report, m.EngineStats)]

    run(m.Submit(request("a", 1000), 1000), m.Submit(request("b", 1000), 1000))
    assert run() == []
    [asked] = run(m.Cancel("a"), m.AskStats(7))
    assert (asked.answers, asked.stats.running, asked.stats.cancelled) == (7, 1, 1)
    assert asked.process_id == os.getpid()
    assert run() == []
