"""The words of a stream with the times at which they are spoken, for agents that must know what was heard."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from voxcpm_client.errors import SpeechError
from voxcpm_client.values.results import Chunk, SegmentEvent

# These scripts have no spaces between words. Each of their characters counts as a word, with the marks after it.
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"\s*(?:[{UNSPACED}][^\w\s]*|[^\s{UNSPACED}]+)(?:\s+$)?|\s+")
LETTER_SECONDS = 0.07  # seconds of speech, until there are segments to measure
BETWEEN_WORDS = 0.5  # letters, which the border of a word takes
KEPT = 0.5  # a segment keeps this share of its weight at each later one: the voice or its speed may have changed
WIDE = 3.0  # letters, which a Chinese character or a Korean syllable takes


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word of a stream, with the white space before it: the words together are the text."""

    text: str
    """The word as it was sent."""

    start: float
    """Its start in seconds from the start of the stream's audio."""

    end: float
    """Its end in seconds from the start of the stream's audio."""

    @property
    def spaced(self) -> bool:
        """False for a character of a script without spaces between words."""
        return not re.search(f"[{UNSPACED}]", self.text)


class Pace:
    """The pace of a voice, measured on segments that were spoken. The streams of an agent share it."""

    def __init__(self) -> None:
        self._seconds = self._letters = 0.0

    @property
    def letter_seconds(self) -> float:
        return self._seconds / self._letters if self._letters else LETTER_SECONDS

    def learn(self, letters: float, seconds: float) -> None:
        self._seconds = KEPT * self._seconds + seconds
        self._letters = KEPT * self._letters + letters


class TimedWords:
    """The words of a stream of one turn. Each is known when the speech of its segment begins.

    The server says where segments begin and end. Within a segment the times are estimates: each letter takes as long as
    in the segments before.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._text = ""
        self._given = 0  # characters of the text
        self._begun: SegmentEvent | None = None

    def sent(self, text: str) -> None:
        """Add text that was sent."""
        self._text += text

    def of(self, chunk: Chunk) -> Iterator[TimedWord]:
        """The words whose speech begins with this chunk."""
        for event in chunk.events:
            match event.kind:
                case "started":
                    self._begun = event
                    yield from self._words(event, chunk)
                case "finished" if self._begun is not None and event.finish_reason == "complete":
                    seconds = (event.at_samples - self._begun.at_samples) / chunk.sample_rate
                    self._pace.learn(letters(self._text[event.input_start : event.input_end]), seconds)
                    self._begun = None
                case _:
                    pass

    @property
    def have_letters(self) -> bool:
        """True if the text has a letter or a digit."""
        return any(map(str.isalnum, self._text))

    def refused(self, error: SpeechError) -> bool:
        """True for the refusal of a text without letters and digits, such as an emoji alone: an agent says nothing."""
        return not self.have_letters and error.field == "text" and bool(error.reason)

    def rest(self) -> str:
        """The text of which no word was given, such as an emoji at the end, which is not spoken."""
        rest, self._given = self._text[self._given :], len(self._text)
        return rest

    def _words(self, segment: SegmentEvent, chunk: Chunk) -> Iterator[TimedWord]:
        words = split(self._text[self._given : segment.input_end])
        self._given = segment.input_end
        start = segment.at_samples / chunk.sample_rate
        for word in words:
            end = start + letters(word) * self._pace.letter_seconds
            yield TimedWord(word, start, end)
            start = end


def split(text: str) -> list[str]:
    """The words of a text, each with the white space before it; that at the end belongs to the last one."""
    return WORD.findall(text)


def letters(text: str) -> float:
    """The length of a text as its speech takes it, in letters."""
    size = sum(WIDE if unicodedata.east_asian_width(one) in "WF" else 1.0 for one in text if one.isalnum())
    return size + BETWEEN_WORDS * len(text.split())
