"""Token ids with a vocabulary of the released size: those of the library, also of texts that arrive in parts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines.qwen_texts import PHRASES, in_parts, reference, sentences, write_released_vocabulary

from voxcpm_grpc.models.qwen3_tts.tokenizer import WHITE, TextTokenizer

SENTENCES = 2000
PARTS = st.sampled_from([part for phrases in PHRASES.values() for part in phrases])
TEXTS = st.lists(st.one_of(PARTS, st.text(max_size=4), st.sampled_from([" ", "\n", ""])), max_size=8).map("".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("vocabulary")
    write_released_vocabulary(made)
    return made


@pytest.fixture(scope="module")
def tokenizer(folder) -> TextTokenizer:
    return TextTokenizer(folder)


def test_sentences_of_ten_languages_have_the_ids_of_the_library(folder, tokenizer):
    other = reference(folder)
    assert tokenizer.top == 151642
    for text in sentences(SENTENCES):
        assert tokenizer(text) == other.encode(text.strip(WHITE)).ids, text


def test_sentences_in_parts_have_the_ids_of_the_whole(tokenizer):
    rng = random.Random(2)
    for text in sentences(SENTENCES, seed=2):
        cuts = rng.sample(range(len(text) + 1), min(len(text), rng.randint(0, 10)))
        assert in_parts(tokenizer, text, cuts) == tokenizer(text)


def test_texts_in_parts_have_the_ids_of_the_whole(tokenizer):
    @settings(max_examples=2000, deadline=None)
    @given(TEXTS, st.lists(st.integers(0, 60), max_size=12))
    def check(text: str, cuts: list[int]) -> None:
        assert in_parts(tokenizer, text, [min(cut, len(text)) for cut in cuts]) == tokenizer(text)

    check()
