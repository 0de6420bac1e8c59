"""Texts of dialogues, and when each word of them is written."""

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

WORDS: dict[str, list[str]] = json.loads(Path(__file__).with_name("dialogue_words.json").read_text())


@dataclass(frozen=True, slots=True)
class Schedule:
    """How text is written: words a second, infinitely many for all text in one message, and the seconds between the
    first sentence's full stop and the next word; None without a pause."""

    name: str
    rate: float
    pause: float | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """Text to send, `at` seconds after the first message is due."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A dialogue to perform. `sentence_ends` are positions in `text` behind each full stop, in code points."""

    text: str
    sentence_ends: tuple[int, ...]
    messages: tuple[Message, ...]


def schedule(name: str, pause: float) -> Schedule:
    """The schedule of that name: a number of words a second, `once` or `pause`. Raises ValueError for others."""
    if name == "once":
        return Schedule(name, math.inf)
    if name == "pause":
        return Schedule(name, PAUSE_RATE, pause)
    rate = float(name)
    if not 0 < rate < math.inf:
        raise ValueError(f"{name} words a second; it must be a number above 0")
    return Schedule(name, rate)


def script(sentences: Sequence[str], schedule: Schedule) -> Script:
    """Write the sentences word by word; the space between two words is part of the second one's message."""
    text = " ".join(sentences)
    ends = tuple(end - 1 for end in accumulate(len(sentence) + 1 for sentence in sentences))
    if math.isinf(schedule.rate):
        return Script(text=text, sentence_ends=ends, messages=(Message(0.0, text),))
    messages, at, position = [], 0.0, 0
    for word in text.split(" "):
        piece = f" {word}" if messages else word
        messages.append(Message(at, piece))
        position += len(piece)
        paused = schedule.pause is not None and position == ends[0]
        at += schedule.pause if paused and schedule.pause is not None else 1 / schedule.rate
    return Script(text=text, sentence_ends=ends, messages=tuple(messages))


def texts(sentences: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Texts of so many sentences each. No two begin with the same name, and no sentence comes twice, so that no text
    finds anything of another in a prefix cache. Ends when the names are used up."""
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
    """A sentence about `name`, which it begins with; empty: about somebody."""
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
