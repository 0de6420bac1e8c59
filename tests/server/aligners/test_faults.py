"""Aligners that break the rules of their interface cost the times of one segment, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from voxcpm_server.aligners.aligner import Timed
from voxcpm_server.aligners.messages import Begin, Drop, Finish, Found, Outcome, Push
from voxcpm_server.aligners.process import Alignments

SPEECH = np.zeros(1600, np.float32).tobytes()
NAN = float("nan")


class Scripted:
    """Returns what a test says, at the end."""

    languages = frozenset({"en"})
    rate = 16000

    def __init__(self, *found: Timed) -> None:
        self.found = found
        self.pushed: list[int] = []

    def begin(self, words: Sequence[str], language: str) -> Scripted:
        return self

    def push(self, samples: np.ndarray) -> Sequence[Timed]:
        self.pushed.append(len(samples))
        return ()

    def finish(self, *, complete: bool) -> Sequence[Timed]:
        return self.found


def answers(aligner: Scripted, rate: int = 16000) -> list[Found]:
    alignments = Alignments([aligner])
    begin = Begin(1, ["one", "two", "three"], rate, "en")
    return [alignments.answer(message) for message in (begin, Push(1, SPEECH), Finish(1, True), Push(1, SPEECH))]


def test_words_in_order_are_passed_on_and_some_may_be_missing():
    found = (Timed(0, 0.0, 0.5), Timed(2, 0.5, 0.5))
    begun, pushed, finished, after = answers(Scripted(*found))
    assert (begun, pushed) == (Found(), Found([]))
    assert finished == Found(list(found), Outcome.ENDED)
    assert after == Found(outcome=Outcome.ENDED)


@pytest.mark.parametrize(
    "found",
    [
        [Timed(1, 0.0, 0.5), Timed(0, 0.5, 1.0)],
        [Timed(0, 0.0, 0.5), Timed(0, 0.5, 1.0)],
        [Timed(3, 0.0, 0.5)],
        [Timed(-1, 0.0, 0.5)],
        [Timed(0, 0.5, 0.4)],
        [Timed(0, 0.0, 0.5), Timed(1, 0.3, 0.6)],
        [Timed(0, -0.1, 0.5)],
        [Timed(0, 0.0, float("inf"))],
        [Timed(0, NAN, NAN)],
    ],
)
def test_words_that_cannot_be_end_the_alignment(found):
    assert answers(Scripted(*found))[2] == Found(outcome=Outcome.ENDED)


def test_an_aligner_never_gets_empty_speech():
    """A resampler keeps the first samples back."""
    aligner = Scripted()
    answers(aligner, rate=48000)
    assert aligner.pushed and all(aligner.pushed)


def test_an_alignment_that_is_dropped_is_gone():
    alignments = Alignments([Scripted()])
    alignments.answer(Begin(1, ["one"], 16000, ""))
    assert alignments.answer(Drop(1)) == alignments.answer(Drop(1)) == Found(outcome=Outcome.ENDED)
