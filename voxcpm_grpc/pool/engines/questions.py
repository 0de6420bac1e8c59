"""Messages between the fronts of a host, and questions to all of them, which the host or one of the fronts asks."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from voxcpm_grpc.aio.tasks import keep_running
from voxcpm_grpc.ipc.front_messages import AskFront, AskFronts, FromFront, FrontAnswer, FrontAnswers, ToFronts
from voxcpm_grpc.ipc.messages import Command, Report

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 1.0  # seconds for a front whose event loop is busy; one that takes longer is left out


class Front(Protocol):
    """A front as the host knows it. Only a front that is `ready` is asked."""

    id: str
    name: str

    @property
    def ready(self) -> bool: ...

    def post(self, command: Command) -> None: ...


class HostQuestions:
    """Asks the fronts of a host, and passes on their messages. `fronts`: those that run, by id."""

    def __init__(self, fronts: Mapping[str, Front]) -> None:
        self._fronts = fronts
        self._numbers = itertools.count()
        self._waiting: dict[tuple[str, int], asyncio.Future[bytes]] = {}  # the keys are the front's id and the number
        self._passing: set[asyncio.Task[None]] = set()

    async def ask(self, topic: str, *, without: str = "") -> dict[str, bytes]:
        """The answers of the fronts by their ids. Those that are not ready or do not answer in time are left out.

        without: the id of a front that is not asked
        """
        asked = [front for front in self._fronts.values() if front.ready and front.id != without]
        answers = await asyncio.gather(*(self._ask(front, topic) for front in asked))
        return {front.id: answer for front, answer in zip(asked, answers, strict=True) if answer}

    def on_report(self, front: Front, report: Report) -> None:
        """Handle a report of a front; all that are not about questions are ignored."""
        match report:
            case FrontAnswer(number, answer):
                if (waiting := self._waiting.get((front.id, number))) and not waiting.done():
                    waiting.set_result(answer)
            case AskFronts(number, topic):
                task = keep_running(lambda: self._pass_on(front, number, topic), "a question to all fronts")
                self._passing.add(task)
                task.add_done_callback(self._passing.discard)
            case ToFronts(topic, body):
                for other in self._fronts.values():
                    if other.ready and other.id != front.id:
                        other.post(FromFront(topic, body))

    async def _pass_on(self, front: Front, number: int, topic: str) -> None:
        names = {one.id: one.name for one in self._fronts.values()}
        answers = await self.ask(topic, without=front.id)
        front.post(FrontAnswers(number, {names[id]: answer for id, answer in answers.items()}))

    async def _ask(self, front: Front, topic: str) -> bytes:
        key = front.id, next(self._numbers)
        self._waiting[key] = answer = asyncio.get_running_loop().create_future()
        try:
            front.post(AskFront(key[1], topic))
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            return b""
        finally:
            del self._waiting[key]


class FrontQuestions:
    """Answers the questions that reach a front, asks the other fronts, and exchanges messages with them.

    `name` is that of the front. `send` sends a report to the host.
    """

    def __init__(self, name: str, send: Callable[[Report], None]) -> None:
        self.name = name
        self._send = send
        self._topics: dict[str, Callable[[], Awaitable[bytes]]] = {}
        self._handlers: dict[str, Callable[[bytes], None]] = {}
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, bytes]]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    def answer(self, topic: str, function: Callable[[], Awaitable[bytes]]) -> None:
        """Answer the questions about a topic with this function from now on."""
        self._topics[topic] = function

    def receive(self, topic: str, handler: Callable[[bytes], None]) -> None:
        """Handle what others send about a topic with this function from now on."""
        self._handlers[topic] = handler

    def send_others(self, topic: str, body: bytes) -> None:
        """Send a body to the other fronts that are ready; never waits."""
        self._send(ToFronts(topic, body))

    async def ask_others(self, topic: str) -> dict[str, bytes]:
        """The answers of the other fronts by their names. Those that do not answer in time are left out."""
        number = next(self._numbers)
        self._waiting[number] = answers = asyncio.get_running_loop().create_future()
        try:
            self._send(AskFronts(number, topic))
            async with asyncio.timeout(2 * ANSWER_SECONDS):  # the host may be busy, too
                return await answers
        except TimeoutError:
            return {}
        finally:
            del self._waiting[number]

    def on_question(self, question: AskFront) -> None:
        task = keep_running(lambda: self._answer(question), "the answer to a question")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def on_message(self, message: FromFront) -> None:
        if handler := self._handlers.get(message.topic):
            handler(message.body)

    def on_answers(self, answers: FrontAnswers) -> None:
        if (waiting := self._waiting.get(answers.number)) and not waiting.done():
            waiting.set_result(answers.answers)

    async def _answer(self, question: AskFront) -> None:
        answer = b""
        try:
            if function := self._topics.get(question.topic):
                answer = await function()
        except Exception:
            logger.exception("a question about %s cannot be answered", question.topic)
        self._send(FrontAnswer(question.number, answer))
