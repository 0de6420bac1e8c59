"""The report of a dispatcher to each front on the work of its engine for the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.doubles.fake_engine import INFO, FakeEngine, request

from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc import messages as m
from voxcpm_grpc.request import Priority
from voxcpm_grpc.worker import dispatcher as dispatcher_module
from voxcpm_grpc.worker.dispatcher import Dispatcher
from voxcpm_grpc.worker.heartbeat import StepTimer


@pytest.fixture
def engine():
    return FakeEngine(replace(INFO, max_slots=1), step_seconds=0.0)


@pytest.fixture
def dispatcher(engine):
    dispatcher = Dispatcher(engine, StepTimer())
    for front in "ab":
        run(dispatcher, front, m.Keep(()))
    return dispatcher


def run(dispatcher: Dispatcher, front: str, *commands: m.Command) -> list[m.ExternalLoad]:
    """Handle commands until the engine is idle; returns the loads that were reported to front b."""
    inbox, loads = [(front, encoding.encode(command)) for command in commands], []
    for _ in range(1000):
        if not (inbox or dispatcher.busy):
            break
        reports = dispatcher.run_once(inbox)
        inbox = []
        loads += [report for report in reports.get("b", []) if isinstance(report, m.ExternalLoad)]
        assert not any(isinstance(report, m.ExternalLoad) for report in reports.get("a", []))
    return loads


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_the_last_report_before_the_engine_is_idle_has_no_paused_streams(dispatcher, monkeypatch, seconds):
    monkeypatch.setattr(dispatcher_module, "LOAD_SECONDS", seconds)
    loads = run(dispatcher, "a", m.Submit(request("1", 100), 5, work=100.0))
    assert loads == [] or loads[-1] == m.NO_LOAD
    assert not run(dispatcher, "b", m.Allow("unknown", 1)), "nothing has changed"
    loads = run(dispatcher, "a", m.Allow("1", 10))
    assert loads == [] or loads[-1] == m.NO_LOAD


def test_the_report_counts_the_streams_that_wait_for_their_first_slot(dispatcher, monkeypatch):
    monkeypatch.setattr(dispatcher_module, "LOAD_SECONDS", 0.0)
    requests = [m.Submit(request(name, 6), 3, work=6.0) for name in "12"]
    loads = run(dispatcher, "a", *requests)
    assert loads[0] == m.ExternalLoad(2, 12.0, waiting=1)  # the first step has admitted one
    waiting = [load.waiting for load in loads]
    assert waiting == sorted(waiting, reverse=True) and waiting[-1] == 0
    assert loads[-1] == m.NO_LOAD


def test_a_report_is_sent_only_if_it_differs_from_the_last(dispatcher, engine, monkeypatch):
    monkeypatch.setattr(dispatcher_module, "LOAD_SECONDS", 0.0)
    loads = run(dispatcher, "a", m.Submit(request("1", 3), 3))
    assert loads[0].streams == 1 and loads[-1] == m.NO_LOAD
    assert len(loads) == len(set(loads))


def test_the_report_tells_batch_streams_apart(dispatcher, monkeypatch):
    monkeypatch.setattr(dispatcher_module, "LOAD_SECONDS", 0.0)
    requests = [replace(request("1", 6), priority=Priority.BATCH), request("2", 6)]
    loads = run(dispatcher, "a", *(m.Submit(one, 3, work=6.0) for one in requests))
    assert loads[0] == m.ExternalLoad(2, 12.0, waiting=1, batch=1, batch_waiting=0)
    assert loads[-1] == m.NO_LOAD


def test_the_work_grows_with_the_text(dispatcher, monkeypatch):
    monkeypatch.setattr(dispatcher_module, "LOAD_SECONDS", 0.0)
    loads = run(
        dispatcher, "a", m.Submit(replace(request("1", 6), open=True), 3, work=6.0), m.Append("1", "x", True, 4.0)
    )
    assert loads[0].steps == 10.0 and loads[-1] == m.NO_LOAD
