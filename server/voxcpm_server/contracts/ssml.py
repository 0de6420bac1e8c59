"""SSML as far as every model can speak it: paragraphs, sentences, and breaks of an exact length."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from xml.parsers import expat

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.v1 import tts_pb2 as pb

SPOKEN = ("speak", "p", "s")
BOUNDARY = "\n\n"  # an empty line ends a sentence
STRENGTHS: Mapping[str, int] = {  # milliseconds
    "none": 0,
    "x-weak": 100,
    "weak": 250,
    "medium": 500,
    "strong": 750,
    "x-strong": 1000,
}
TIME = re.compile(r"\+?(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(ms|s)")
MAX_BREAK_SECONDS = 60  # seconds of all breaks of a text, because a few bytes stand for each
MAX_NAME = 40  # characters of a wrong name in an error

Part = str | int
"""Text, or a break in milliseconds."""


def parts(document: str, field: str) -> list[Part]:
    """The text and the breaks of a document, in order.

    field: path of the document, for errors

    Raises InvalidRequest for a document that is not well-formed, and by name for what is not supported.
    """
    return _Reader(field).read(document)


def requests(found: Iterable[Part], field: str) -> list[pb.GenerateRequest]:
    """The messages that speak texts and breaks. Raises InvalidRequest for breaks that are too long together."""
    found = list(found)
    milliseconds = sum(part for part in found if isinstance(part, int))
    if milliseconds > 1000 * MAX_BREAK_SECONDS:
        raise InvalidRequest(
            f"the breaks of {field} are {milliseconds / 1000:g} s long together and the limit is "
            f"{MAX_BREAK_SECONDS} s; shorten them, or send the text in parts",
            field=field,
        )
    return [
        pb.GenerateRequest(text=part)
        if isinstance(part, str)
        else pb.GenerateRequest(pause=pb.Pause(milliseconds=part))
        for part in found
        if part
    ]


class _Reader:
    def __init__(self, field: str) -> None:
        self._field = field
        self._parts: list[Part] = []
        self._open: list[str] = []

    def read(self, document: str) -> list[Part]:
        parser = expat.ParserCreate("utf-8")  # the encoding does not depend on what the document declares
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        try:
            parser.Parse(document.encode(), True)
        except expat.ExpatError as error:
            raise InvalidRequest(
                f"{self._field} is not well-formed XML: {expat.ErrorString(error.code)} at line {error.lineno}, column "
                f"{error.offset + 1}",
                field=self._field,
            ) from None
        return self._parts

    def _doctype(self, *_: object) -> None:
        raise self._error("it has a DOCTYPE; remove it")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._open and name != "speak":
            raise self._error(f"it begins with <{name[:MAX_NAME]}>; it must be <speak>...</speak>")
        if name == "break":
            self._break(attributes)
        elif name not in SPOKEN or (name == "speak" and self._open):
            raise self._error(
                f"<{name[:MAX_NAME]}> is not supported; this server speaks the elements speak, p, s and break"
            )
        elif name != "speak" and attributes:
            raise self._error(f"the attribute {next(iter(attributes))[:MAX_NAME]} of <{name}> is not supported")
        self._open.append(name)

    def _end(self, name: str) -> None:
        self._open.pop()
        if name in ("p", "s"):
            self._parts.append(BOUNDARY)

    def _text(self, text: str) -> None:
        if "break" in self._open and text.strip():
            raise self._error("<break> has text inside; it must be empty")
        self._parts.append(re.sub(r"\s+", " ", text))

    def _break(self, attributes: Mapping[str, str]) -> None:
        for name in attributes:
            if name not in ("time", "strength"):
                raise self._error(f"the attribute {name[:MAX_NAME]} of <break> is not supported")
        strength = attributes.get("strength", "medium")
        if strength not in STRENGTHS:
            raise self._error(
                f"the strength of <break> is {strength[:MAX_NAME]!r}; it is one of {', '.join(STRENGTHS)}"
            )
        milliseconds = STRENGTHS[strength]
        if (time := attributes.get("time")) is not None:
            if (parsed := TIME.fullmatch(time.strip())) is None:
                raise self._error(f"the time of <break> is {time[:MAX_NAME]!r}; it must be as 300ms or 1.5s")
            milliseconds = round(float(parsed[1]) * (1 if parsed[2] == "ms" else 1000))
        self._parts.append(milliseconds)

    def _error(self, fault: str) -> InvalidRequest:
        return InvalidRequest(f"{self._field}: {fault}", field=self._field)
