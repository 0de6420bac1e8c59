"""The text that was heard follows the text that was spoken: after lexicons and normalisation, in the caller's words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.doubles.readers import Reader

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.speech.heard import SpokenText
from voxcpm_server.text.lexicon import Lexicon, WordList
from voxcpm_server.text.preparation import TextPreparation
from voxcpm_server.text.words.alignment import aligned
from voxcpm_server.text.words.spoken_words import weight, word_ends
from voxcpm_server.values.inputs import TurnConfig
from voxcpm_server.values.outputs import CutReason, Segment

RATE = 1000
STEP = 960  # samples at 48 kHz; the fake engine makes one step for each character
SUM = "one thousand two hundred and thirty four dollars and fifty six cents"
PLACE = "the city of the bridge and of the many towers"


def written(source: str) -> Segment:
    return Segment(
        turn=0,
        index=0,
        text=" ".join(source.split()),
        spaced=False,
        start=0,
        end=len(source),
        cut=CutReason.FLUSH,
        source=source,
        turn_config=TurnConfig(normalize=True),
    )


async def prepared(source: str, readings: Mapping[str, str], words: Mapping[str, str] | None = None) -> Segment:
    preparation = TextPreparation(Lexicon(WordList(words or {})), Reader(readings))  # type: ignore[arg-type]
    return await preparation.prepare(written(source))


def heard(segment: Segment, letters: float) -> str:
    """The caller's text that was heard when the speech of so many letters was played."""
    spoken = SpokenText(RATE, RATE)
    spoken.started(segment, 0)
    length = round(weight(segment.text) * RATE)
    spoken.finished(length, complete=True)
    spoken.cut(length, length)
    return segment.source[: spoken.heard(min(length - 1, round(letters * RATE))).input_end]


def parts(segment: Segment) -> list[str]:
    """The different texts that are heard, in order."""
    return list(dict.fromkeys(heard(segment, at / 2) for at in range(1, 2 * int(weight(segment.text)))))


async def test_a_number_is_as_long_as_its_words():
    text = "We paid $1,234.56 and left early."
    segment = await prepared(text, {"$1,234.56": SUM})
    assert heard(segment, weight("We paid")) == "We paid"
    assert heard(segment, weight(f"We paid {SUM[:20]}")) == "We paid"
    assert heard(segment, weight(f"We paid {SUM[:60]}")) == "We paid $1,234.56"
    assert heard(segment, weight(f"We paid {SUM} and")) == "We paid $1,234.56 and"
    assert parts(segment) == ["", "We", "We paid", "We paid $1,234.56", "We paid $1,234.56 and", text[:-7], text]


async def test_words_of_a_number_that_the_text_has_too_are_not_confused():
    segment = await prepared("I paid $1,234.56 and 5 more.", {"$1,234.56": SUM, "5 ": "five "})
    assert heard(segment, weight(f"I paid {SUM[:20]}")) == "I paid"
    assert heard(segment, weight(f"I paid {SUM[:60]}")) == "I paid $1,234.56"
    assert heard(segment, weight(f"I paid {SUM} and five")) in ("I paid $1,234.56 and", "I paid $1,234.56 and 5")


@pytest.mark.parametrize(
    ("text", "readings"),
    [
        (
            "生日是2024年5月3日，不是２０２３年。",
            {"2024": "二零二四", "5": "五", "3": "三", "２０２３": "二零二三"},
        ),
        ("他花了$1,234.56吃饭。", {"$1,234.56": "一千二百三十四点五六美元"}),
        ("ราคา 1,234 บาทครับ", {"1,234": "หนึ่งพันสองร้อยสามสิบสี่"}),
        ("ราคา ๑,๒๓๔ บาทครับ", {"๑,๒๓๔": "หนึ่งพันสองร้อยสามสิบสี่"}),
    ],
)
async def test_the_end_is_never_inside_a_word_that_was_replaced(text, readings):
    found = parts(await prepared(text, readings))
    assert len(found) >= 4
    for number in readings:
        start = text.index(number)
        assert not any(start < len(part) < start + len(number) for part in found), found


@pytest.mark.parametrize(
    ("text", "word", "spelling"),
    [
        ("From New York to Boston by train.", "new york", PLACE),
        ("Ask Mr John Doe of Boston.", "John Doe", "Doe the older"),
        ("我们去重庆火车站坐车吧。", "重庆火车站", "车站"),
    ],
)
async def test_the_end_is_never_inside_words_that_a_lexicon_replaced(text, word, spelling):
    segment = await prepared(text, {}, {word: spelling})
    start = text.casefold().index(word.casefold())
    found = parts(segment)
    assert text[: start + len(word)] in found
    assert not any(start < len(part) < start + len(word) for part in found), found


async def test_marks_that_are_not_spoken_belong_to_their_words():
    text = "**Bold** costs `5` [here](https://example.org/a-b) now."
    readings = {"**": "", "`5` [": "five ", "](https://example.org/a-b)": ""}
    words = text.split(" ")
    assert parts(await prepared(text, readings)) == [" ".join(words[:count]) for count in range(6)]


async def test_text_that_is_not_spoken_takes_no_time():
    text = "Look: ~~~ a b c d e f g h ~~~ that was code."
    segment = await prepared(text, {"~~~ a b c d e f g h ~~~ ": ""})
    assert heard(segment, weight("Look: that")) == text[: -len(" was code.")]
    assert heard(segment, weight("Look:")) == "Look:"


WORDS = st.lists(
    st.sampled_from(["and", "of", "two", "12", "$3.50", "Boston", "the", "7", "New", "home."]), max_size=30
)


@given(WORDS, WORDS)
def test_every_word_of_both_texts_is_in_one_pair(ours, theirs):
    pairs = list(aligned(" ".join(ours), " ".join(theirs)))
    assert [word for words, _ in pairs for word in words] == list(range(len(ours)))
    assert [word for _, said in pairs for word in said] == list(range(len(theirs)))


@given(st.text(max_size=60))
def test_a_text_is_aligned_with_itself_word_by_word(text):
    assert all(words == said and len(words) == 1 for words, said in aligned(text, text))
    assert len(list(aligned(text, text))) == len(list(word_ends(text)))


SPOKEN = {"12": "twelve", "$3.50": "three dollars and fifty cents", "7": "seven", "Boston": "the city of Boston"}


@settings(max_examples=40)
@given(WORDS, st.integers(1, 20))
def test_the_end_goes_on_with_the_speech_and_is_that_of_a_word(words, steps):
    source = " ".join(["Well,", *words, "12"])
    spoken = " ".join(SPOKEN.get(word, word) for word in source.split())
    segment = replace(written(source), text=spoken)
    found = [len(heard(segment, weight(spoken) * step / steps)) for step in range(1, steps + 1)]
    assert found == sorted(found)
    assert set(found) <= {0, *word_ends(source)}


def test_long_texts_are_aligned_in_little_time():
    """Compared with texts of a tenth of their words, of which there is no anchor."""
    costs = []
    for count in (500, 5000):
        ours, theirs = " ".join(["one", "two"] * count), " ".join(["two", "three"] * count)
        began = time.process_time()
        list(aligned(ours, theirs))
        costs.append(time.process_time() - began)
    assert costs[1] < 100 * costs[0]


async def test_an_interrupt_answers_with_the_callers_words(served):
    text = "Take the GIF and go home now."
    spelling = "graphics interchange format which is an old kind of picture"
    call = served.stub.Generate()
    config = pb.GenerateConfig(
        lexicon=[pb.LexiconEntry(word="gif", spelling=spelling)],
        output=pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_S16LE, sample_rate_hz=48000),
    )
    await call.write(pb.GenerateRequest(config=config))
    await call.write(pb.GenerateRequest(text=text))
    await call.write(pb.GenerateRequest(flush=pb.Flush()))
    while not (await call.read()).HasField("flush_done"):
        pass
    ends = []
    for steps in (len("Take the"), len(f"Take the {spelling[:40]}"), len(f"Take the {spelling} and go")):
        await call.write(pb.GenerateRequest(interrupt=pb.Interrupt(played_samples=steps * STEP)))
        while not (reply := await call.read()).HasField("interrupted"):
            pass
        ends.append(text[: reply.interrupted.heard_input_end])
    assert ends == ["Take the", "Take the GIF", "Take the GIF and go"]
    call.cancel()
