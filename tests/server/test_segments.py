"""Text is cut the same however it arrives, and where a reader would cut it."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from voxcpm_server.segments import Piece, Segmenter, is_joined, is_speakable, spoken

LIMIT = 60

WORDS = [
    *("Hello", "world", "Dr.", "Smith", "e.g.", "3.50", "1,000", "v1.2", "U.S.", "don't", "naïve", "e\u0301te\u0301"),
    *("你好", "世界", "我们走吧", "こんにちは", "「はい」", "안녕하세요", "नमस्ते", "مرحبا", "สวัสดี", "Ω", "J. R. R."),
    *("👍🏽", "👩‍👩‍👧", "🇩🇪🇫🇷", "😀", "...", "—", "“quoted.”", '"said."', "(see p. 3)", "x" * 70, "汉" * 70),
    *('"', "“", "”", "(", ")", "「", "」", "'", "Mr", "St", "No", "etc", "a.m"),
]
ENDS = [". ", ".", "! ", "? ", "; ", ": ", ", ", "…", "。", "！", "？", "、", "，", "।", "؟", "\n", "\n\n", "\r\n"]
GAPS = [" ", " ", " ", "", "\u2028", "\u3000", "\t", "\x00", "\x1b", "J.\u2028"]
TOKEN = st.tuples(st.sampled_from(WORDS), st.sampled_from(ENDS) | st.sampled_from(GAPS)).map("".join)
PLAIN = st.sampled_from(["Go", "He said", '"', "Mr", "no", "J"]).flatmap(
    lambda word: st.sampled_from([". ", " ", "! ", ""]).map(lambda end: word + end)
)
TEXT = (st.lists(TOKEN, max_size=40) | st.lists(PLAIN, max_size=30)).map("".join)


def pieces_of(parts: list[str], *, sentences: bool = True, limit: int = LIMIT, flush: bool = True) -> list[Piece]:
    segmenter = Segmenter(sentences=sentences, max_chars=limit)
    pieces = [piece for part in parts for piece in segmenter.feed(part)]
    return pieces + list(segmenter.flush()) if flush else pieces


def texts_of(*parts: str, **options) -> list[str]:
    return [piece.text for piece in pieces_of(list(parts), **options)]


@settings(max_examples=300, deadline=None)
@given(TEXT, st.data(), st.booleans())
def test_any_cut_into_messages_gives_the_same_segments(text, data, sentences):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = pieces_of([text], sentences=sentences)
    assert pieces_of(parts, sentences=sentences) == whole
    assert pieces_of(list(text), sentences=sentences) == whole


@settings(max_examples=150, deadline=None)
@given(TEXT)
def test_what_a_prefix_gives_is_never_revised(text):
    whole = pieces_of([text])
    segmenter = Segmenter(sentences=True, max_chars=LIMIT)
    so_far: list[Piece] = []
    for character in text:
        so_far += segmenter.feed(character)
        assert so_far == whole[: len(so_far)]


@settings(max_examples=300, deadline=None)
@given(st.one_of(TEXT, st.text(max_size=300)), st.booleans())
@example("\u2028 A.\u2028B. C. 👍. \u3000J. R.\xa0R. Tolkien", True)
def test_segments_cover_the_input_and_are_short_and_speakable(text, sentences):
    at = 0
    for piece in pieces_of([text], sentences=sentences):
        assert not is_speakable(text[at : piece.start])
        assert at <= piece.start < piece.end
        assert is_speakable(piece.text)
        assert len(piece.text) <= LIMIT
        assert piece.text == spoken(text[piece.start : piece.end])
        at = piece.end
    assert not is_speakable(text[at:])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello world. How are you? Fine.", ["Hello world.", "How are you?", "Fine."]),
        ("Dr. Smith paid $3.50. He left.", ["Dr. Smith paid $3.50.", "He left."]),
        ("你好。世界！再见", ["你好。", "世界！", "再见"]),
        ("他说：“你好。我们走吧。”然后走了。", ["他说：“你好。我们走吧。”", "然后走了。"]),
        ("First line\n\nSecond line", ["First line", "Second line"]),
        ("  spaced \t out  ", ["spaced out"]),
        ("Hi\x00 there\x1b.", ["Hi there."]),
        ("Well done. 👍", ["Well done. 👍"]),
        ("... Hello. Bye.", ["... Hello.", "Bye."]),
        ("?!", []),
        ("\x00\x01 \n", []),
        ("", []),
    ],
)
def test_sentences(text, expected):
    assert texts_of(text) == expected


def test_a_sentence_is_emitted_when_two_more_have_begun():
    assert texts_of("One is here. Two is here.", flush=False) == []
    assert texts_of("One is here. Two is here. T", flush=False) == ["One is here."]


def test_a_cjk_sentence_is_emitted_with_the_next_character():
    assert texts_of("你好。", flush=False) == []
    assert texts_of("你好。世", flush=False) == ["你好。"]


def test_manual_waits_for_the_flush():
    segmenter = Segmenter(sentences=False, max_chars=60)
    assert list(segmenter.feed("One. Two. Three. Four.")) == []
    assert [piece.text for piece in segmenter.flush()] == ["One. Two. Three. Four."]


def test_manual_text_beyond_the_limit_is_cut_between_sentences():
    assert texts_of("One two three. Four five six. Seven eight nine.", sentences=False, limit=32) == [
        "One two three. Four five six.",
        "Seven eight nine.",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("alpha beta gamma, delta epsilon zeta eta", ["alpha beta gamma,", "delta epsilon zeta eta"]),
        ("alpha beta gamma delta epsilon zeta", ["alpha beta gamma delta", "epsilon zeta"]),
        ("abcdefghijklmnopqrstuvwxyzabcdef", ["abcdefghijklmnopqrstuvwx", "yzabcdef"]),
        ("costs 1,000,000,000,000,000,000 in all", ["costs", "1,000,000,000,000,000,00", "0 in all"]),
        (
            "一二三四五六七八九十，一二三四五六七八九十一二三四五六",
            ["一二三四五六七八九十，", "一二三四五六七八九十一二三四五六"],
        ),
    ],
)
def test_long_sentences_are_cut_at_the_best_place(text, expected):
    assert texts_of(text, limit=24) == expected


@pytest.mark.parametrize(
    "cluster",
    ["e\u0301", "👍🏽", "👩‍👩‍👧‍👦", "🇩🇪", "क्ष", "\u1100\u1161\u11a8", "กำ", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "☀️", "\r\n"],
)
def test_visible_characters_stay_whole(cluster):
    for cut in range(1, len(cluster)):
        assert is_joined(cluster, cut)
    assert not is_joined(cluster + "a", len(cluster))
    if is_speakable(cluster):
        text = cluster * 40
        for piece in pieces_of([text], limit=20):
            assert piece.start % len(cluster) == 0


def test_flags_are_cut_in_pairs():
    text = "🇩🇪🇫🇷🇯🇵"
    assert [cut for cut in range(1, 6) if not is_joined(text, cut)] == [2, 4]


def test_white_space_between_segments_is_told():
    assert [(p.text, p.spaced) for p in pieces_of(["One. Two. 三。四。"])] == [
        ("One.", False),
        ("Two.", True),
        ("三。", True),
        ("四。", False),
    ]


def test_ranges_continue_after_a_flush():
    segmenter = Segmenter(sentences=True, max_chars=60)
    first = [*segmenter.feed("One. "), *segmenter.flush()]
    second = [*segmenter.feed("Two."), *segmenter.flush()]
    assert [(p.text, p.start, p.end) for p in first + second] == [("One.", 0, 5), ("Two.", 5, 9)]
    assert second[0].spaced


@pytest.mark.parametrize(
    "text",
    ["Word, word: word. " * 1100, "a,b;" * 5000, "." * 20000, " " * 20000, "好" * 20000, "J. R. " * 3000 + "x" * 2000],
)
def test_a_slice_of_text_costs_little(text):
    segmenter = Segmenter(sentences=True, max_chars=400)
    worst = 0.0
    for at in range(0, len(text), 64):
        began = time.thread_time()
        list(segmenter.feed(text[at : at + 64]))
        worst = max(worst, time.thread_time() - began)
    assert worst < 0.005


@pytest.mark.parametrize("space", ["\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u2029", "\u3000"])
def test_wide_spaces_do_not_upset_the_library(space, caplog):
    assert texts_of(f"He met D{space}. Then J{space}. R.{space}Tolkien left. They{space}stayed.")
    assert not caplog.records
