"""Questions and messages between the fronts of a host, without sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial

import pytest
from support.servers.waiting import NEVER_SECONDS, until

from voxcpm_grpc.ipc.front_messages import AskFront, FromFront, FrontAnswers
from voxcpm_grpc.ipc.messages import Command, Report
from voxcpm_grpc.pool.engines import questions
from voxcpm_grpc.pool.engines.questions import FrontQuestions, HostQuestions


class Front:
    """A front as its host knows it, which handles each command at once."""

    def __init__(self, id: str, host: HostQuestions) -> None:
        self.id, self.name, self.ready = id, f"front {id}", True
        self.questions = FrontQuestions(self.name, partial(self._report, host))
        self.questions.answer("name", self._name)

    async def _name(self) -> bytes:
        return self.name.encode()

    def _report(self, host: HostQuestions, report: Report) -> None:
        host.on_report(self, report)

    def post(self, command: Command) -> None:
        match command:
            case AskFront():
                self.questions.on_question(command)
            case FrontAnswers():
                self.questions.on_answers(command)
            case FromFront():
                self.questions.on_message(command)


class Host:
    def __init__(self) -> None:
        fronts: dict[str, Front] = {}
        self.questions = HostQuestions(fronts)
        for id in "abc":
            fronts[id] = Front(id, self.questions)
        self.fronts = fronts


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(questions, "ANSWER_SECONDS", NEVER_SECONDS)
    yield Host()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    """An answer that does not come soon is late. A busy host may delay the others, so no test asks for these, too."""
    monkeypatch.setattr(questions, "ANSWER_SECONDS", 0.05)


async def test_the_host_asks_every_front_that_is_ready(host):
    assert await host.questions.ask("name") == {id: f"front {id}".encode() for id in "abc"}
    host.fronts["b"].ready = False
    assert set(await host.questions.ask("name")) == {"a", "c"}


async def test_a_front_asks_the_others_by_their_names(host):
    assert await host.fronts["a"].questions.ask_others("name") == {"front b": b"front b", "front c": b"front c"}


async def test_a_front_that_knows_nothing_fails_or_is_late_is_left_out(host, late, caplog):
    async def fail() -> bytes:
        raise ZeroDivisionError

    async def never() -> bytes:
        await asyncio.Event().wait()
        return b"late"

    host.fronts["a"].questions.answer("topic", fail)
    host.fronts["b"].questions.answer("topic", never)
    with caplog.at_level(logging.ERROR):
        assert await host.questions.ask("topic") == {}
    assert "a question about topic cannot be answered" in caplog.text


async def test_a_host_that_does_not_answer_ends_the_question(late):
    asked: list[Report] = []
    assert await FrontQuestions("front 0", asked.append).ask_others("name") == {}
    assert len(asked) == 1


async def test_a_message_reaches_the_others_that_are_ready(host):
    received: list[tuple[str, bytes]] = []
    for id, front in host.fronts.items():
        front.questions.receive("topic", lambda body, id=id: received.append((id, body)))
    host.fronts["c"].ready = False
    host.fronts["a"].questions.send_others("topic", b"spent")
    host.fronts["a"].questions.send_others("another topic", b"nobody listens")
    await until(lambda: received == [("b", b"spent")])
