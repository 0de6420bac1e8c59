"""Interrupts against a listener whose audio says which text was heard: 200 conversations on a fake clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from support.clients.decoding import decoded
from support.clients.listeners import Inline, Listener, Sound, sounds
from support.servers.sessions import session

from voxcpm_grpc.audio import AudioFormat, Encoding
from voxcpm_server.speech import writer
from voxcpm_server.values.inputs import Continuity, Flush, GenerateInput, Interrupt, SegmentationMode, Text

RATE = 48000
INTERRUPTS = 20  # of a stream
WORDS = [
    *("a", "to", "I", "the", "tea", "over", "blue", "rather", "house", "string", "morning", "evening"),
    *("remarkable", "understanding"),
]
GREETING = "Good morning, this is the desk of the library and we are glad to help. "
BRACKETS = str.maketrans("", "", "()")


@dataclass(frozen=True)
class Question:
    """An interrupt: what the listener says, and what it knows of the flushes."""

    played: int
    unanswered: list[str]


class Conversation:
    """An agent that speaks, and a listener who breaks in at random moments."""

    def __init__(self, chance: random.Random, listener: Listener) -> None:
        self.chance, self.listener = chance, listener
        self.texts: list[str] = []  # by turn
        self.questions: list[Question] = []
        self._open = False
        self._flushes: list[str] = []

    def script(self) -> Iterator[GenerateInput | float]:
        yield from self._say(GREETING)  # from which the pace is known
        yield from self._flush(end_turn=False)
        while not self.listener.flushed:
            yield 0.01
        for _ in range(INTERRUPTS):
            if self.listener.answers and self.chance.random() < 0.3:
                heard = self.listener.answers[-1]
                if rest := self.texts[heard.heard_turn_index][heard.heard_input_end :]:
                    yield from self._say(rest)  # the agent goes on where the listener broke in
            for _ in range(self.chance.randint(1, 3)):
                yield from self._say(self._sentence())
                if self.chance.random() < 0.4:
                    yield from self._flush(end_turn=self.chance.random() < 0.4)
                if self.chance.random() < 0.2:
                    yield self.chance.uniform(0, 2)
            yield self.chance.uniform(0, 8)
            yield from self._interrupt()

    def _say(self, text: str) -> Iterator[GenerateInput]:
        if not self._open:
            self.texts.append("")
            self._open = True
        self.texts[-1] += text
        yield Text(text)

    def _sentence(self) -> str:
        words = self.chance.choices(WORDS, k=self.chance.randint(1, 12))
        between = self.chance.choice([" ", " ", "  ", " * ", "\n"])
        return between.join(words).capitalize() + self.chance.choice([". ", "! ", ".  \n", "? ", " (so). "])

    def _flush(self, *, end_turn: bool) -> Iterator[GenerateInput]:
        self._flushes.append(f"flush {len(self._flushes)}")
        self._open = self._open and not end_turn
        yield Flush(self._flushes[-1], end_turn)

    def _interrupt(self) -> Iterator[GenerateInput | float]:
        played = self.listener.position()
        borders = [e.at_samples for m in self.listener.received for e in m.segment_events if e.at_samples <= played]
        if self.chance.random() < 0.3:
            played = borders[-1]
        dropped = {tag for answer in self.listener.answers for tag in answer.dropped_flush_tags}
        unanswered = [tag for tag in self._flushes if tag not in dropped and tag not in self.listener.flushed]
        self.questions.append(Question(played, unanswered))
        self.listener.stop()
        self._open = False
        yield Interrupt(str(len(self.questions)), played)
        while len(self.listener.answers) < len(self.questions):
            yield 0.01


def spans(conversation: Conversation, heard: list[Sound]) -> dict[tuple[int, int], int]:
    """The places of the segments in the texts of their turns, found in the text alone: the index of their first word.

    Unspoken text between two segments has no letter.
    """
    found: dict[tuple[int, int], int] = {}
    ends: dict[int, int] = {}
    for request in {sound.request.id: sound.request for sound in heard}.values():
        words = _words(conversation.texts[request.turn])
        first = next(at for at in range(ends.get(request.turn, 0), len(words)) if _starts(words[at:], request.text))
        found[request.turn, request.segment] = first
        ends[request.turn] = first + len(request.text.split())
    return found


def _words(text: str) -> list[str]:
    return text.split()


def _starts(words: list[str], text: str) -> bool:
    wanted = text.translate(BRACKETS).split()  # those at the start of a segment are not spoken
    return [word.translate(BRACKETS) for word in words[: len(wanted)]] == wanted


def check(conversation: Conversation, heard: list[Sound]) -> int:
    """Compare the answers with the audio. Returns the number of those that had to be exact."""
    exact = 0
    first_words = spans(conversation, heard)
    events = [e for m in conversation.listener.received for e in m.segment_events]
    ranges = {(e.turn_index, e.segment_index): (e.input_start, e.input_end) for e in events}
    for question, answer in zip(conversation.questions, conversation.listener.answers, strict=True):
        assert list(answer.dropped_flush_tags) == question.unanswered
        assert question.played <= answer.sent_samples
        if not question.played:
            assert (answer.heard_turn_index, answer.heard_input_end, answer.heard_estimated) == (0, 0, False)
            continue
        last = max((sound for sound in heard if sound.begin < question.played), key=lambda one: one.begin)
        request = last.request
        key = request.turn, request.segment
        start, end = ranges[key]
        text = conversation.texts[request.turn]
        got = len(_words(text[: answer.heard_input_end]))
        assert answer.heard_turn_index == request.turn
        if last.is_last and last.end <= question.played:
            exact += 1
            assert (answer.heard_input_end, answer.heard_estimated) == (end, False)
            assert got == first_words[key] + len(request.text.split())
            continue
        assert answer.heard_estimated
        visible, following = text[: answer.heard_input_end].rstrip(), text[answer.heard_input_end :]
        ends_a_word = answer.heard_input_end == len(visible) and not following[:1].strip()
        assert ends_a_word or answer.heard_input_end == start
        begun = len(request.text[: last.char + 1].split())
        assert abs(got - first_words[key] - begun) <= 1, (text, question, answer, begun)
    return exact


STREAMS = [
    (Encoding.PCM_S16LE, Continuity.CARRY, SegmentationMode.SENTENCE, 1000.0, 1, 0.004),
    (Encoding.FLAC, Continuity.INDEPENDENT, SegmentationMode.SENTENCE, 1000.0, 2, 0.03),
    (Encoding.WAV, Continuity.CARRY, SegmentationMode.MANUAL, 0.5, 3, 0.001),
    (Encoding.FLAC, Continuity.CARRY, SegmentationMode.SENTENCE, 1.0, 4, 0.0),
    (Encoding.PCM_S16LE, Continuity.INDEPENDENT, SegmentationMode.SENTENCE, 0.3, 2, 0.019),
]


@pytest.mark.parametrize("buffer", [1000.0, 0.2])
@pytest.mark.parametrize(("encoding", "continuity", "mode", "max_lead", "char_steps", "step_seconds"), STREAMS)
def test_what_was_heard_is_exact_between_segments_and_within_a_word_inside(
    fake,
    spoken_by: Callable[..., np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    encoding: Encoding,
    continuity: Continuity,
    mode: SegmentationMode,
    max_lead: float,
    char_steps: int,
    step_seconds: float,
    buffer: float,
) -> None:
    """20 interrupts of 10 streams that differ in format, paces of the speech and the engine, and buffers."""
    monkeypatch.setattr(writer, "ENCODING_THREADS", Inline())
    format = AudioFormat(encoding, RATE)
    listener = Listener(RATE, buffer)
    conversation = Conversation(random.Random(f"{encoding} {continuity} {char_steps} {buffer}"), listener)
    pool = fake(step_seconds=step_seconds, char_steps=char_steps)
    session(
        pool,
        conversation.script(),
        client=listener,
        output=format,
        mode=mode,
        continuity=continuity,
        max_lead=max_lead,
    )
    data = b"".join(message.audio for message in listener.received)
    if encoding is Encoding.PCM_S16LE:
        audio = np.frombuffer(data, "<i2")
    else:
        audio = np.rint(decoded(data, format)[0] * 32768).astype(np.int16)
    assert len(audio) == listener.received[-1].summary.total_samples
    assert len(conversation.questions) == INTERRUPTS
    exact = check(conversation, sounds(audio, pool.requests, spoken_by, char_steps))
    assert 1 <= exact < INTERRUPTS
