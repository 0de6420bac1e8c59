"""Text is cut at the same places for every division into messages, and where a reader would cut it."""

from __future__ import annotations

import time
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from voxcpm_server.text.description import description_end
from voxcpm_server.text.segments.segmenter import DOUBTFUL_WAITS, Segmenter
from voxcpm_server.text.segments.sentence_ends import Boundaries
from voxcpm_server.text.words.characters import is_joined, is_speakable, spoken
from voxcpm_server.values.inputs import FirstSegment, Segmentation, SegmentationMode
from voxcpm_server.values.outputs import CutReason, Segment

LIMIT = 60

# No pause may cut inside these or directly behind them.
DOUBTFUL = (
    *(
        "Dr.",
        "e.g.",
        "z. B.",
        "3.5",
        "am 3.",
        "costs 12.",
        "J. R. R.",
        "bzw.",
        "well...",
        "so…",
        "visit example.com to",
    ),
    *("www.example.com", "т. е.", "г.", "p. ej.", "Mme.", "on www.v2.host", "$3.50."),
)
CERTAIN = ["It rains.", "Really?", "Stop!", "你好。", "Das war gut.", "यह है।", "Let me check that for you."]

WORDS = [
    *("Hello", "world", "Dr.", "Smith", "e.g.", "3.50", "1,000", "v1.2", "U.S.", "don't", "naïve", "e\u0301te\u0301"),
    *("你好", "世界", "我们走吧", "こんにちは", "「はい」", "안녕하세요", "नमस्ते", "مرحبا", "สวัสดี", "Ω", "J. R. R."),
    *("👍🏽", "👩‍👩‍👧", "🇩🇪🇫🇷", "😀", "...", "—", "“quoted.”", '"said."', "(see p. 3)", "x" * 70, "汉" * 70),
    *('"', "“", "”", "(", ")", "「", "」", "'", "Mr", "St", "No", "etc", "a.m"),
    *("สวัสดีครับ คุณสบายดีไหม", "ខ្ញុំមកវិញហើយ។", "သူလာသည်။", "„Hallo.", "»Ja.«", "(calm. old)", "（好。", "{HH AH0 L OW1}"),
    *("ok. yeah i can", "— Часа", "Πού πας;", "我们今天一起去那里看看然后再回家吃饭好不好", "ລາວບໍ່ໄປ"),
]
ENDS = [". ", ".", "! ", "? ", "; ", ": ", ", ", "…", "。", "！", "？", "、", "，", "।", "؟", "\n", "\n\n", "\r\n"]
GAPS = [" ", " ", " ", "", "\u2028", "\u3000", "\t", "\x00", "\x1b", "J.\u2028"]
TOKEN = st.tuples(st.sampled_from(WORDS), st.sampled_from(ENDS) | st.sampled_from(GAPS)).map("".join)
PLAIN = st.sampled_from(["Go", "He said", '"', "Mr", "no", "J"]).flatmap(
    lambda word: st.sampled_from([". ", " ", "! ", ""]).map(lambda end: word + end)
)
TEXT = (st.lists(TOKEN, max_size=40) | st.lists(PLAIN, max_size=30)).map("".join)


def cut(text: str) -> st.SearchStrategy[list[str]]:
    """Divisions of a text into messages."""
    places = st.lists(st.integers(0, len(text)), max_size=12).map(sorted)
    return places.map(lambda cuts: [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])


def segments_of(
    parts: list[str], *, sentences: bool = True, limit: int = LIMIT, flush: bool = True, eager: bool = False
) -> list[Segment]:
    mode = SegmentationMode.SENTENCE if sentences else SegmentationMode.MANUAL
    first = FirstSegment.EAGER if eager else FirstSegment.SENTENCE
    segmenter = Segmenter(Segmentation(mode=mode, max_chars=limit, first_segment=first))
    segments = [segment for part in parts for segment in segmenter.feed(part)]
    return segments + list(segmenter.flush()) if flush else segments


def texts_of(*parts: str, **options) -> list[str]:
    return [segment.text for segment in segments_of(list(parts), **options)]


@settings(max_examples=300, deadline=None)
@given(TEXT | st.text(max_size=200), st.data(), st.booleans(), st.booleans())
def test_every_division_into_messages_gives_the_same_segments(text, data, sentences, eager):
    parts = data.draw(cut(text))
    whole = segments_of([text], sentences=sentences, eager=eager)
    assert segments_of(parts, sentences=sentences, eager=eager) == whole
    assert segments_of(list(text), sentences=sentences, eager=eager) == whole


@settings(max_examples=300, deadline=None)
@given(TEXT | st.text(max_size=200), st.integers(12, LIMIT), st.booleans())
def test_no_end_of_a_segment_is_between_the_stops(text, limit, eager):
    """A segmenter looks for an end at some characters only, and finds what one finds that looks at each of them."""
    found = segments_of([text], limit=limit, eager=eager)
    with mock.patch.object(Segmenter, "_next_stop", lambda self, done: done + 1):
        assert segments_of([text], limit=limit, eager=eager) == found


@settings(max_examples=150, deadline=None)
@given(TEXT)
def test_a_segment_is_emitted_as_soon_as_its_end_is_certain(text):
    segmenter = Segmenter(Segmentation(max_chars=10_000))
    rules = Boundaries()
    start = 0
    for at, character in enumerate(text):
        end = rules.before(text[start:at], character)
        segments = list(segmenter.feed(character))
        cut = [(segment.start, segment.end) for segment in segments if segment.cut is CutReason.SENTENCE]
        certain = end is not None and is_speakable(text[start : start + end])
        described = start == 0 and description_end(text[: end or 0]) is None
        assert cut == ([(start, start + (end or 0))] if certain and not described else [])
        for segment in segments:
            start = segment.end
            rules = rules.after(text[segment.start : start])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(DOUBTFUL) | st.sampled_from(CERTAIN), min_size=1, max_size=12), st.data())
def test_a_pause_shorter_than_the_longer_one_cuts_no_doubtful_text(tokens, data):
    text = " ".join(tokens)
    segmenter = Segmenter(Segmentation())
    segments = []
    at = 0
    for part in data.draw(cut(text)):
        segments += segmenter.feed(part)
        at += len(part)
        within_ellipsis = text[at : at + 1] == "."  # the next character continues an ellipsis
        if segmenter.max_wait == Segmentation().max_wait and not within_ellipsis:
            segments += segmenter.pause()  # the text pauses for that long, and not for longer
    segments += segmenter.flush()
    assert (
        "".join(text[segment.start : segment.end] for segment in segments) == text
    )  # nothing is lost, repeated or reordered
    at, inside = 0, set()
    for token in tokens:
        if token in DOUBTFUL:
            inside |= set(range(at + 1, at + len(token) + 1))
        at += len(token) + 1
    assert not inside & {segment.end for segment in segments[:-1]}


@settings(max_examples=150, deadline=None)
@given(TEXT)
def test_the_segments_of_a_prefix_are_never_revised(text):
    whole = segments_of([text])
    segmenter = Segmenter(Segmentation(max_chars=LIMIT))
    so_far: list[Segment] = []
    for character in text:
        so_far += segmenter.feed(character)
        assert so_far == whole[: len(so_far)]


@settings(max_examples=300, deadline=None)
@given(st.one_of(TEXT, st.text(max_size=300)), st.booleans())
@example("\u2028 A.\u2028B. C. 👍. \u3000J. R.\xa0R. Tolkien", True)
def test_segments_cover_the_input_and_are_short_and_speakable(text, sentences):
    at = 0
    for segment in segments_of([text], sentences=sentences):
        assert not is_speakable(text[at : segment.start])
        assert at <= segment.start < segment.end
        assert is_speakable(segment.text)
        assert len(segment.text) <= LIMIT
        assert segment.text == spoken(text[segment.start : segment.end])
        at = segment.end
    assert not is_speakable(text[at:])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello world. How are you? Fine.", ["Hello world.", "How are you?", "Fine."]),
        ("Dr. Smith paid $350. He left.", ["Dr. Smith paid $350.", "He left."]),
        ("你好。世界！再见", ["你好。", "世界！", "再见"]),
        ("他说：“你好。我们走吧。”然后走了。", ["他说：“你好。我们走吧。”然后走了。"]),
        ("他说：“你好。我们走吧。”“好的。”", ["他说：“你好。我们走吧。”", "“好的。”"]),
        ("「はい。」と答えた。次です。", ["「はい。」と答えた。", "次です。"]),
        ("「はい。行きます。」\n次です。", ["「はい。行きます。」", "次です。"]),
        ("真的吗?我们走吧!好。", ["真的吗?", "我们走吧!", "好。"]),
        ("我用Python 3.5。很好", ["我用Python 3.5。", "很好"]),
        (
            "He said “Go. Now.” Then he left. “Why?” she asked.",
            ["He said “Go. Now.”", "Then he left.", "“Why?” she asked."],
        ),
        ("„Ja. Gut.“ Er ging. «Oui. Non.» Il part.", ["„Ja. Gut.“", "Er ging.", "«Oui. Non.»", "Il part."]),
        ("Wir kommen am 3. Mai. Gut.", ["Wir kommen am 3. Mai.", "Gut."]),
        ("Tee bzw. Kaffee. Gut.", ["Tee bzw. Kaffee.", "Gut."]),
        ("В 1990 г. Москва росла, т. е. богатела. Да.", ["В 1990 г. Москва росла, т. е. богатела.", "Да."]),
        ("M. Dupont et Mme. Noir. Oui.", ["M. Dupont et Mme. Noir.", "Oui."]),
        ("El Sr. Gil y la Dra. Paz. Sí.", ["El Sr. Gil y la Dra. Paz.", "Sí."]),
        ("See No. 5. Now go. No. Tell me. Why?", ["See No. 5. Now go.", "No.", "Tell me.", "Why?"]),
        ("J. R. R. Tolkien wrote it. At 5 p.m. Bob left.", ["J. R. R. Tolkien wrote it.", "At 5 p.m. Bob left."]),
        ("It is ready. see below. Go.", ["It is ready. see below.", "Go."]),
        ("Well... I see. No… Yes. Go.", ["Well... I see.", "No… Yes.", "Go."]),
        ("**Bold.** Next. _So._ Go. `a.b` is it. Go.", ["**Bold.**", "Next.", "_So._", "Go.", "`a.b` is it.", "Go."]),
        ("(He left.) She [too.] Go.", ["(He left.)", "She [too.]", "Go."]),
        ('He asked "Why?" and left. "I see." Go.', ['He asked "Why?" and left.', '"I see."', "Go."]),
        ("Great! 😀 Next one. Go.", ["Great! 😀", "Next one.", "Go."]),
        ("Here it is:\n- Milk\n- Eggs, two\n\nThat is all.", ["Here it is:", "- Milk", "- Eggs, two", "That is all."]),
        ("Do this:\n1. Mix it.\n2. Bake it\n10) Eat", ["Do this:", "1. Mix it.", "2. Bake it", "10) Eat"]),
        (
            "## The plan\nWe go. A line\nwraps here. Go.",
            ["## The plan", "We go.", "A line wraps here.", "Go."],
        ),
        ("It is done.\nit begins small.\nWe wait 5.\nGo", ["It is done. it begins small.", "We wait 5.", "Go"]),
        ('यह अच्छा है। हाँ। "क्यों?" उसने पूछा। चलो।', ["यह अच्छा है।", "हाँ।", '"क्यों?" उसने पूछा।', "चलो।"]),
        ("هل أنت هنا؟ نعم. د. أحمد هنا. حسنا", ["هل أنت هنا؟", "نعم.", "د. أحمد هنا.", "حسنا"]),
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


@pytest.mark.parametrize(
    ("before", "settling", "expected"),
    [
        ("One is here. ", "T", "One is here."),
        ("One is here.\n", "T", "One is here."),
        ("“One is here.” ", "“", "“One is here.”"),
        ("你好。", "世", "你好。"),
        ("你好。", " ", "你好。"),
        ("「你好。」", "「", "「你好。」"),
        ("यह है।", " ", "यह है।"),
        ("A title\n", "\n", "A title"),
        ("A title\r\n \t", "\n", "A title"),
        ("Milk\n- ", "E", "Milk"),
    ],
)
def test_a_sentence_is_emitted_with_the_first_character_that_shows_its_end(before, settling, expected):
    segmenter = Segmenter(Segmentation())
    assert not list(segmenter.feed(before))
    (segment,) = segmenter.feed(settling)
    assert (segment.text, segment.cut) == (expected, CutReason.SENTENCE)


def test_the_language_decides_which_abbreviations_count():
    text = "Das ist evtl. Holz oder Stein. Gut"
    for language, count in (("", 1), ("de", 1), ("ru", 2)):
        assert len(list(Segmenter(Segmentation(language=language)).feed(text))) == count


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("Let me check that for you.", 1),
        ("Let me check that for you. ", 1),
        ("Really?!", 1),
        ('He said "Go."', 1),
        ("**Done.**", 1),
        ("Sure! 😀", 1),
        ("你好。", 1),
        ("यह है।", 1),
        ("هل أنت هنا؟", 1),
        ("In 1990, all was well. ", 1),
        ("It costs $3.", DOUBTFUL_WAITS),
        ("It was in 1990.", DOUBTFUL_WAITS),
        ("We meet am 3. ", DOUBTFUL_WAITS),
        ("Ask Dr.", DOUBTFUL_WAITS),
        ("J.", DOUBTFUL_WAITS),
        ("At 5 p.m.", DOUBTFUL_WAITS),
        ("Well...", DOUBTFUL_WAITS),
        ("Well…", DOUBTFUL_WAITS),
        ("“Go.", 1),
        ("「はい。", 1),
        ("Of course,", DOUBTFUL_WAITS),
        ("Here it is:\n", DOUBTFUL_WAITS),
        ("好的，", DOUBTFUL_WAITS),
        ("Visit example.", DOUBTFUL_WAITS),
        ("Edit the file config.", DOUBTFUL_WAITS),
        ("Please visit us.", 1),
        ("Then the rain came in.", 1),
        ("No.", 1),
        ("Write to bob@mail.", DOUBTFUL_WAITS),
        ("Visit example. ", 1),
        ("One is", DOUBTFUL_WAITS),
        ("One is here. Two", DOUBTFUL_WAITS),
        ("- Milk\n", DOUBTFUL_WAITS),
        ("on my way 😩", DOUBTFUL_WAITS),
        ("1. Τρένο: από 25,50 €", DOUBTFUL_WAITS),
        ("כן תקוע בפקק", DOUBTFUL_WAITS),
        ("say {HH AH0", None),
        ("say {HH AH0 L OW1}", DOUBTFUL_WAITS),
        ("?!", None),
        ("", None),
    ],
)
def test_the_length_of_a_pause_depends_on_the_end_of_the_text(text, waits):
    for mode in (SegmentationMode.MANUAL, SegmentationMode.SENTENCE):
        segmenter = Segmenter(Segmentation(mode=mode, max_wait=0.5))
        list(segmenter.feed(text))
        manual = mode is SegmentationMode.MANUAL
        assert segmenter.max_wait == (None if manual or waits is None else waits * 0.5)


def test_without_a_wait_no_pause_is_due():
    segmenter = Segmenter(Segmentation(max_wait=0))
    list(segmenter.feed("Let me check that for you. "))
    assert segmenter.max_wait is None


def test_a_pause_ends_the_segment():
    segmenter = Segmenter(Segmentation())
    list(segmenter.feed("One is here. Two is here."))
    (segment,) = segmenter.pause()
    assert (segment.text, segment.cut, segment.end) == ("Two is here.", CutReason.PAUSE, 25)
    assert segmenter.pending == 0
    assert [(p.text, p.spaced, p.start) for p in [*segmenter.feed(" Three."), *segmenter.flush()]] == [
        ("Three.", True, 25)
    ]


def test_eager_begins_with_a_clause():
    text = (
        "When the rain has gone, we walk by the river, if you like, and then, maybe, home. But, as I said, no, not so."
    )
    assert texts_of(text, limit=400) == [text[:81], text[82:]]
    assert [(segment.text, segment.cut) for segment in segments_of([text], limit=400, eager=True)] == [
        ("When the rain has gone,", CutReason.CLAUSE),
        ("we walk by the river,", CutReason.CLAUSE),
        ("if you like, and then,", CutReason.CLAUSE),
        ("maybe, home.", CutReason.SENTENCE),
        ("But, as I said, no, not so.", CutReason.FLUSH),  # no longer the first sentence
    ]


def test_eager_counts_words_of_scripts_without_spaces_by_characters():
    assert texts_of("我们今天一起去那里看看，然后回家。", eager=True) == ["我们今天一起去那里看看，", "然后回家。"]
    assert texts_of("今天，然后回家。", eager=True) == ["今天，然后回家。"]


def test_the_reasons_of_segment_ends():
    text = "One is here. " + "X" * 70 + "\n\nTwo, three"
    assert [segment.cut for segment in segments_of([text])] == [
        CutReason.SENTENCE,
        CutReason.LIMIT,
        CutReason.SENTENCE,
        CutReason.FLUSH,
    ]


def test_manual_waits_for_the_flush():
    segmenter = Segmenter(Segmentation(mode=SegmentationMode.MANUAL, max_chars=60))
    assert list(segmenter.feed("One. Two. Three. Four.")) == []
    assert [segment.text for segment in segmenter.flush()] == ["One. Two. Three. Four."]


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
        for segment in segments_of([text], limit=20):
            assert segment.start % len(cluster) == 0


def test_flags_are_cut_in_pairs():
    text = "🇩🇪🇫🇷🇯🇵"
    assert [cut for cut in range(1, 6) if not is_joined(text, cut)] == [2, 4]


def test_segments_know_white_space_before_them():
    assert [(p.text, p.spaced) for p in segments_of(["One. Two. 三。四。"])] == [
        ("One.", False),
        ("Two.", True),
        ("三。", True),
        ("四。", False),
    ]


def test_ranges_continue_after_a_flush():
    segmenter = Segmenter(Segmentation(max_chars=60))
    first = [*segmenter.feed("One. "), *segmenter.flush()]
    second = [*segmenter.feed("Two."), *segmenter.flush()]
    assert [(p.text, p.start, p.end) for p in first + second] == [("One.", 0, 5), ("Two.", 5, 9)]
    assert second[0].spaced


HARD = {
    "words": "Word, word: word. ",
    "clauses": "a,b;",
    "stops": ".",
    "spaces": " ",
    "lines": "\n",
    "han": "好",
    "initials": "J. R. ",
    "quotes": "“ ",
    "closers": '." ',
    "emphasis": "。*_",
    "unspeakable": "- ",
}


@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
def test_the_cost_of_text_grows_with_its_length_alone(text):
    def feed(length: int) -> float:
        segmenter = Segmenter(Segmentation())
        whole = (text * length)[:length]
        began = time.thread_time()
        for at in range(0, length, 64):
            list(segmenter.feed(whole[at : at + 64]))
        return time.thread_time() - began

    feed(1_000)
    # The ratio is 10 if linear, and 100 if quadratic; a slow host only increases some.
    assert any(feed(10_000) / feed(1_000) < 30 for _ in range(5))


@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
def test_little_text_waits_for_any_text(text):
    segmenter = Segmenter(Segmentation())
    for _ in range(300):
        list(segmenter.feed(text * 20))
        assert segmenter.pending <= 3 * Segmentation().max_chars


@pytest.mark.parametrize("space", ["\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u2029", "\u3000"])
def test_wide_spaces_do_not_break_the_library(space, caplog):
    assert texts_of(f"He met D{space}. Then J{space}. R.{space}Tolkien left. They{space}stayed.")
    assert not caplog.records
