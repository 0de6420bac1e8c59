"""Token ids are those of the official tokenizer, also of a text that arrives in parts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines.qwen3 import GOLDENS
from support.engines.qwen3_codec import checkpoint
from support.engines.qwen_texts import PHRASES, in_parts, reference, sentences

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models.qwen3_tts.tokenizer import WHITE, ArrivingText, TextTokenizer

FOLDER = checkpoint("custom06")
TOKENIZER = TextTokenizer(FOLDER)
PARTS = st.sampled_from([part for phrases in PHRASES.values() for part in phrases])
MARKS = st.text(st.sampled_from("eaou\u0301\u0323\u0308\u0304\u0327\u1112\u1161\u11abéǖ"), max_size=4)
TEXTS = st.lists(st.one_of(PARTS, MARKS, st.text(max_size=4), st.sampled_from([" ", "\n", ""])), max_size=8).map(
    "".join
)


def test_ids_are_those_of_the_official_package():
    official = json.loads((GOLDENS / "texts.json").read_text("utf-8"))
    assert len(official) > 30
    for text, ids in official.items():
        assert TOKENIZER(text) == ids, text


def test_ids_are_those_of_the_library():
    other = reference(FOLDER)
    for text in sentences(300):
        assert TOKENIZER(text) == other.encode(text.strip(WHITE)).ids, text


def test_the_text_of_special_tokens_is_text():
    assert len(TOKENIZER("<|im_end|>")) == 10 and TOKENIZER.text_of(TOKENIZER("a<|im_end|>"), 0) == "a<|im_end|>"


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.lists(st.integers(0, 60), max_size=12))
def test_a_text_in_parts_has_the_ids_of_the_whole(text, cuts):
    assert in_parts(TOKENIZER, text, [min(cut, len(text)) for cut in cuts]) == TOKENIZER(text)


@pytest.mark.thorough
@pytest.mark.nightly
@settings(max_examples=20_000, deadline=None)
@given(TEXTS, st.lists(st.integers(0, 60), max_size=12))
def test_any_text_in_any_parts_has_the_ids_of_the_whole(text, cuts):
    assert in_parts(TOKENIZER, text, [min(cut, len(text)) for cut in cuts]) == TOKENIZER(text)


@pytest.mark.parametrize(
    ("text", "settled"),
    [
        ("Hello", ""),  # the word may go on
        ("Hello ", "Hello"),
        ("Hello world", "Hello"),
        ("Hello world.", "Hello world"),
        ("Hello wo", "Hello"),
        ("e", ""),
        ("an e\u0301", "an"),  # a further mark may join the letter
        ("one.\n", "one"),  # a further line break would join the mark
        ("5", "5"),  # no token has two digits
        ("  \n", ""),
    ],
)
def test_a_token_is_read_when_no_later_text_can_change_it(text, settled):
    ids = TOKENIZER.extend(ArrivingText(), text, last=False).ids
    assert TOKENIZER.text_of([*ids], 0) == settled


def test_a_clause_without_spaces_is_read_before_it_ends():
    ids = TOKENIZER.extend(ArrivingText(), "今天世界你好好好", last=False).ids
    assert TOKENIZER.text_of([*ids], 0).startswith("今天世界你好")


def test_text_that_is_not_read_begins_with_a_whole_character():
    ids = TOKENIZER("a世")
    assert [TOKENIZER.text_of(ids, place) for place in range(len(ids))] == ["a世", "世", *["世"] * (len(ids) - 2)]
    arriving = TOKENIZER.extend(ArrivingText(), "Hello world and mo ", last=False)
    assert TOKENIZER.unread(arriving, 1) == " world and mo "


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        ("{}", "lacks 256 of 256 bytes"),
    ],
)
def test_a_broken_vocabulary_is_refused(tmp_path, content, said):
    (tmp_path / "vocab.json").write_text(content)
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(StartupError, match=said):
        TextTokenizer(tmp_path)
