"""The messages of fronts to each other, which the host of their engines passes on."""

from __future__ import annotations

import msgspec


class AskFront(msgspec.Struct, frozen=True, tag=True):
    """Answer a question about this front with a FrontAnswer of the same number."""

    number: int
    topic: str


class FrontAnswers(msgspec.Struct, frozen=True, tag=True):
    """The answers of other fronts to the AskFronts of this number, by the name of the front."""

    number: int
    answers: dict[str, bytes]


class FromFront(msgspec.Struct, frozen=True, tag=True):
    """The body that another front has sent to all in a ToFronts."""

    topic: str
    body: bytes


class AskFronts(msgspec.Struct, frozen=True, tag=True):
    """Ask the other fronts about a topic. A FrontAnswers of the same number answers."""

    number: int
    topic: str


class ToFronts(msgspec.Struct, frozen=True, tag=True):
    """Send a body about a topic to the other fronts, each of which receives it in a FromFront."""

    topic: str
    body: bytes


class FrontAnswer(msgspec.Struct, frozen=True, tag=True):
    """The answer of a front to an AskFront of its host, empty if the front knows nothing about the topic."""

    number: int
    answer: bytes
