"""The text that was heard, with the readings of the normaliser: numbers are heard whole, and as long as their words."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.servers.waiting import HANG_SECONDS

from voxcpm_server.speech.heard import SpokenText
from voxcpm_server.text.normalize.normalizer import TextNormalizer
from voxcpm_server.text.preparation import TextPreparation
from voxcpm_server.text.words.spoken_words import weight
from voxcpm_server.values.inputs import TurnConfig
from voxcpm_server.values.outputs import CutReason, Segment

RATE = 1000  # samples of a letter


@pytest.fixture
async def normalizer() -> AsyncIterator[TextNormalizer]:
    one = TextNormalizer(timeout=HANG_SECONDS)
    yield one
    await one.close()


def parts(segment: Segment) -> list[str]:
    """The heard part of a segment after each half of a letter."""
    length = round(weight(segment.text) * RATE)
    spoken = SpokenText(RATE, RATE)
    spoken.started(segment, 0)
    spoken.finished(length, complete=True)
    spoken.cut(length, length)
    return [segment.source[: spoken.heard(at).input_end] for at in range(1, length, RATE // 2)]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("We paid $1,234.56 and left early.", "$1,234.56"),
        ("On May 3rd, 2024 it was warm.", "2024"),
        ("Call 555-0123 before noon.", "555-0123"),
        ("今天是2024年，价格涨了。", "2024"),
        ("他花了1234.56元吃饭。", "1234.56"),
    ],
)
async def test_a_number_is_heard_whole_and_as_long_as_its_words(normalizer, text, number):
    segment = Segment(
        turn=0,
        index=0,
        text=text,
        spaced=False,
        start=0,
        end=len(text),
        cut=CutReason.FLUSH,
        source=text,
        turn_config=TurnConfig(normalize=True),
    )
    segment = await TextPreparation(normalizer=normalizer).prepare(segment)
    found = parts(segment)
    start = text.index(number)
    assert number not in segment.text and found == sorted(found, key=len)
    assert not any(start < len(part) < start + len(number) for part in found), found
    after = next(at for at, part in enumerate(found) if len(part) >= start + len(number)) / 2
    before, following = text[:start], text[start + len(number) :]
    middle = (weight(before) + weight(segment.text) - weight(following)) / 2  # of the words of the number
    assert abs(after - middle) < 3, (after, middle)
