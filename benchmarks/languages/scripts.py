"""Marked texts as the scripts of dialogues: words or characters, with pauses between turns."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.dialogue.scripts import Message, Script
from benchmarks.segmentation.arrival import INTERVAL, pieces
from benchmarks.segmentation.corpus import Text


def script(text: Text, *, sentences: int, turn: int, pause: float) -> Script:
    """The first sentences of a text, one piece each INTERVAL, with `pause` seconds after every `turn` sentences."""
    stops = text.stops[:sentences]
    messages: list[Message] = []
    at = 0.0
    for number, (start, stop) in enumerate(pairwise((0, *stops)), 1):
        for piece in pieces(text.text[start:stop], text.language):
            messages.append(Message(at, piece))
            at += INTERVAL
        if number % turn == 0:
            at += pause - INTERVAL
    return Script(text=text.text[: stops[-1]], sentence_ends=tuple(stops), messages=tuple(messages))


def pauses(script: Script, turn: int) -> tuple[int, ...]:
    """The offsets at which the text pauses. The end of the text is none, because the stream ends there."""
    return script.sentence_ends[turn - 1 : -1 : turn]
