"""English text that is put together at random: words never join, none is lost, and a second reading changes nothing."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from voxcpm_server.text import english
from voxcpm_server.text.normalize.readings import normalized

STRANGE = ("jj", "Jjx", "wjj", "JJ", "jjé")  # no English word has these letters
SIGNS = [*" .,:;-–—−+*/=<>%#&@~^_()[]'\"!?°²½×$€£¢§", "  ", " - ", ": "]
FRAGMENTS = (
    "No. no. May Jan Jan. Sept. on the in of and to at I am II VIII X V IV Henry Chapter War World King Malcolm "
    "Dr. St. Mr. p.m. am PM a.m. kg km/h m s h GB fps % k M bn USD EUR v version Python iOS room flight BA call "
    "ISBN AD BC century cup www. .com http:// e.g. etc. vs. p. pp. #1 1st 2nd 3rd x ' ° million percent people"
)  # that rules look for
NUMBERS = st.one_of(
    st.integers(0, 3000).map(str),
    st.from_regex(r"[0-9]{1,3}(,[0-9]{3}){1,3}", fullmatch=True),
    st.from_regex(r"[0-9]{1,4}[.:/,–-][0-9]{1,4}", fullmatch=True),
    st.from_regex(r"[0-9]{1,4}([./-][0-9]{1,4}){2}", fullmatch=True),
    st.from_regex(r"[0-9]{1,12}", fullmatch=True),
)


def texts(*words: str) -> st.SearchStrategy[str]:
    return st.lists(st.one_of(st.sampled_from(words), NUMBERS, st.sampled_from(SIGNS)), max_size=9).map("".join)


def letters(text: str) -> list[str]:
    return re.findall(r"[^\W\d_²½]+", text)


@settings(max_examples=300, deadline=None)
@given(texts(*STRANGE))
@example("jj5jj")
@example("5jj")
def test_words_never_join_and_none_is_lost(text: str):
    strange = [word for word in letters(english.read(text)) if "jj" in word.lower()]
    assert strange == letters(text)


@settings(max_examples=500, deadline=None)
@given(texts(*FRAGMENTS.split()))
def test_a_second_reading_changes_nothing(text: str):
    once = english.read(text)
    assert english.read(once) == once


@settings(max_examples=300, deadline=None)
@given(texts(*FRAGMENTS.split()))
def test_no_digit_is_left(text: str):
    assert not re.search(r"\d", english.read(text))


@pytest.mark.parametrize("text", ["{HH AH0 L OW1}", "{ni3}{hao3}", "Say {HH AH0 L OW1}, then {W ER1 L D}."])
def test_phonemes_stay_as_they_are(text: str):
    assert normalized(text) == text


def test_text_without_numbers_and_signs_stays_as_it_is():
    text = "I am Malcolm X. No. An IV drip, perhaps; a well-known 'rule' (of sorts), isn't it? So is Louis V. Gerstner."
    assert normalized(text) == text


def test_a_long_sentence_takes_some_milliseconds():
    text = (
        "On May 3rd, 2024 at 10:30 p.m. we paid $1,234.56 for 12 kg of Python 3.12, see https://example.com/a?b=1. " * 4
    )
    normalized(text)  # loads the libraries
    began = time.process_time()
    for _ in range(10):
        normalized(text)
    assert (time.process_time() - began) / 10 < 0.1  # 0.004 on a quiet core
