"""Texts of dialogues, and the times at which their words are written."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from pathlib import Path

FEWEST, MOST = 6, 14  # words of a sentence
PAUSE_RATE = 8.0  # words a second before and after a pause

WORDS: dict[str, list[str]] = json.loads(Path(__file__).with_name("words.json").read_text())


@dataclass(frozen=True, slots=True)
class Schedule:
    """The times at which text is written.

    rate: words a second; infinity for all text in one message. pause: seconds between the full stop of the first
    sentence and the next word; None for no pause.
    """

    name: str
    rate: float
    pause: float | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """Text to send `at` seconds after the first message."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The text and the messages of a dialogue. `sentence_ends` are the offsets after each full stop, in code points."""

    text: str
    sentence_ends: tuple[int, ...]
    messages: tuple[Message, ...]


def schedule(name: str, pause: float) -> Schedule:
    """The schedule of a name: `once`, `pause` or a number of words a second. Raises ValueError for any other name.

    pause: seconds of the pause in the schedule `pause`.
    """
    if name == "once":
        return Schedule(name, math.inf)
    if name == "pause":
        return Schedule(name, PAUSE_RATE, pause)
    rate = float(name)
    if not 0 < rate < math.inf:
        raise ValueError(f"{name} words a second is not a finite number above 0")
    return Schedule(name, rate)


def script(sentences: Sequence[str], schedule: Schedule) -> Script:
    """Write sentences word by word. The space between two words is part of the second word's message."""
    text = " ".join(sentences)
    ends = tuple(end - 1 for end in accumulate(len(sentence) + 1 for sentence in sentences))
    if math.isinf(schedule.rate):
        return Script(text=text, sentence_ends=ends, messages=(Message(0.0, text),))
    messages, at, position = [], 0.0, 0
    for word in text.split(" "):
        content = f" {word}" if messages else word
        messages.append(Message(at, content))
        position += len(content)
        paused = schedule.pause is not None and position == ends[0]
        at += schedule.pause if paused and schedule.pause is not None else 1 / schedule.rate
    return Script(text=text, sentence_ends=ends, messages=tuple(messages))


def texts(sentences: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Yield texts of so many sentences each, until the names are used up.

    No two texts begin with the same name, and no sentence comes twice, so that no text finds another one in a prefix
    cache.
    """
    random_ = random.Random(seed)
    names = [" ".join(pair) for pair in product(WORDS["first names"], WORDS["family names"])]
    random_.shuffle(names)
    used: set[str] = set()
    for name in names:
        text = []
        while len(text) < sentences:
            sentence = _sentence(random_, "" if text else name)
            if FEWEST <= len(sentence.split()) <= MOST and sentence not in used:
                used.add(sentence)
                text.append(sentence)
        yield tuple(text)


def _sentence(random_: random.Random, name: str) -> str:
    """A sentence that begins with `name`; with an empty name, a sentence about some person."""
    some = {kind: random_.choice(words) for kind, words in WORDS.items()}
    about, reply = f"{name or _person(random_)} {some['actions']}", f"{_person(random_)} {some['replies']}"
    forms = [
        about,
        f"{about} {some['places']}",
        f"{about}, and {reply}",
        f"{about} {some['places']}, but {reply}",
    ]
    if not name:
        forms.append(f"{some['times']}, {about}")
    chosen = random_.choice(forms)
    return f"{chosen[0].upper()}{chosen[1:]}."


def _person(random_: random.Random) -> str:
    person = random_.choice(WORDS["people"])
    return f"the {random_.choice(WORDS['adjectives'])} {person}" if random_.random() < 0.5 else f"the {person}"
