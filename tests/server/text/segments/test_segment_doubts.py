"""Marks that may or may not end a sentence delay the speech by one sentence at most."""

from __future__ import annotations

import pytest

from voxcpm_server.text.segments.segmenter import DOUBTFUL_WAITS, Segmenter
from voxcpm_server.values.inputs import Segmentation, TurnConfig


def segments_of(text: str, *, style_in_text: bool = False, **options) -> list[str]:
    segmenter = Segmenter(Segmentation(**options), TurnConfig(style_in_text=style_in_text))
    return [segment.text for segment in (*segmenter.feed(text), *segmenter.flush())]


def wait(text: str, *, style_in_text: bool = False, **options) -> float | None:
    """The pause that speaks a text, in units of `max_wait`."""
    segmenter = Segmenter(Segmentation(max_wait=0.5, **options), TurnConfig(style_in_text=style_in_text))
    list(segmenter.feed(text))
    return None if segmenter.max_wait is None else segmenter.max_wait / 0.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('„Hallo." sagte er. Sie ging. Gut.', ['„Hallo." sagte er.', "Sie ging.", "Gut."]),
        ("„Hallo.” Er ging. Gut.", ["„Hallo.”", "Er ging.", "Gut."]),
        ("»Hallo. Gut.« Er ging. Sie auch.", ["»Hallo. Gut.«", "Er ging.", "Sie auch."]),
        ("«Oui. Non.» Il part. Bien.", ["«Oui. Non.»", "Il part.", "Bien."]),
        ("”Hej. Ja.” Han gick. Bra.", ["”Hej. Ja.”", "Han gick.", "Bra."]),
        ("He said “go and left. She came. They ate. All", ["He said “go and left. She came.", "They ate.", "All"]),
        ("“One is. Two is. Three is. Four.", ["“One is. Two is.", "Three is.", "Four."]),
        ("” It rains. We go. Now.", ["” It rains.", "We go.", "Now."]),
        ("他说：“走吧。然后走了。我也走。好。", ["他说：“走吧。然后走了。", "我也走。", "好。"]),
        ("Han gik. »Jeg ser. Du?« Hun kom. Ja.", ["Han gik.", "»Jeg ser. Du?«", "Hun kom.", "Ja."]),
        ("Hon log. ”Hej.” Han gick. Bra.", ["Hon log.", "”Hej.”", "Han gick.", "Bra."]),
        ("Il dit : « Oui. Non. » Il part. Bien.", ["Il dit : « Oui. Non. »", "Il part.", "Bien."]),
        ("《红楼梦很长。我读了。你呢？", ["《红楼梦很长。我读了。", "你呢？"]),
    ],
)
def test_a_quotation_delays_one_sentence_at_most(text, expected):
    assert segments_of(text) == expected


@pytest.mark.parametrize(
    "text", ["“Go.", "„Geh.", "»Geh.", "「はい。", "«Va.", '„Hallo." sagte er.', "so ” be.", "He said “go."]
)
def test_no_quotation_makes_the_pause_longer(text):
    assert wait(text) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "— Спал, — соврал он. — Часа три. — Да? — спросил он.",
            ["— Спал, — соврал он.", "— Часа три.", "— Да? — спросил он."],
        ),
        ("It rains. — Then we stay. So be it.", ["It rains.", "— Then we stay.", "So be it."]),
        ("Paris — London. Go", ["Paris — London.", "Go"]),
        ("Stop! — he cried. Go", ["Stop! — he cried.", "Go"]),
    ],
)
def test_a_dash_begins_a_sentence_before_a_capital(text, expected):
    assert segments_of(text) == expected


ANSWERS = (
    *("OK.", "Ok.", "ok.", "O.K.", "o.k.", "Okay.", "okay.", "okey.", "Sure.", "sure.", "Done.", "Yes.", "No.", "no."),
    *("Klar.", "Gut.", "Nein.", "Bien.", "Sí.", "No.", "Vale.", "Claro.", "Oui.", "Non.", "Va.", "Ok!", "Да.", "Нет."),
    *("Ок.", "ок.", "О.К.", "Tamam.", "Evet.", "Tak.", "Nej.", "Jo.", "Kyllä.", "Ναι.", "네.", "예.", "כן.", "نعم."),
    *("Ya.", "Baik.", "Sige.", "Oo.", "Ndiyo.", "Vâng.", "Có.", "Sim.", "Certo.", "Fatto.", "Prima.", "Fine.", "May."),
)


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_of_one_word_is_a_sentence(answer):
    assert wait(answer) == 1
    assert segments_of(f"{answer} Then we go.") == [answer, "Then we go."]


@pytest.mark.parametrize(
    ("language", "text", "count"),
    [
        ("", "Das ist evtl. Holz.", 1),
        ("de", "Das ist evtl. Holz.", 1),
        ("en", "It was evtl. Wood.", 2),
        ("de", "Sie kommt aus Miss. Er auch.", 2),  # of Mississippi
        ("id", "Ini rumah Inc. Dia pergi.", 2),
        ("id", "Dia menemui Drs. Budi.", 1),
        ("it", "Il sig. Rossi parte.", 1),
        ("", "Il sig. Rossi parte.", 1),
        ("en", "I am 25. You are not.", 2),
        ("de", "Wir kommen am 25. Mai.", 1),
        ("en", "1. Mix it.", 1),
        ("", "Sprecher K.-H. Lorenz kam.", 1),
        ("", "Top it up (see p. 14). Repeat it.", 2),
        ("ru", "He met Dr. Who.", 1),
        ("en", "В 1990 г. Москва росла.", 1),
    ],
)
def test_abbreviations_are_those_of_the_known_language(language, text, count):
    assert len(segments_of(text, language=language)) == count


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yeah i can help. let me check. one moment", ["yeah i can help.", "let me check.", "one moment"]),
        ("really? i think so! let me see.", ["really?", "i think so!", "let me see."]),
        ("да конечно. сейчас посмотрю. минуту", ["да конечно.", "сейчас посмотрю.", "минуту"]),
        ("use e.g. this one. ok. see you", ["use e.g. this one.", "ok.", "see you"]),
        ("well... i see. good", ["well... i see.", "good"]),
        ("it is here. See it. and then. Go.", ["it is here.", "See it. and then.", "Go."]),
        ("It is ready. see below. Go.", ["It is ready. see below.", "Go."]),
    ],
)
def test_text_without_capitals_is_cut_at_full_stops(text, expected):
    assert segments_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "ok who is in\ni am. and you\n我也去\nbring snacks",
            ["ok who is in", "i am.", "and you", "我也去", "bring snacks"],
        ),
        ("Where are you\nAlmost there", ["Where are you", "Almost there"]),
        ("The long line of a page is wrapped here by its width alone, before\nMonday comes.", None),
        ("Dear Anna,\nwe are well.", None),
    ],
)
def test_a_short_line_is_a_sentence_of_its_own(text, expected):
    assert segments_of(text) == (expected or [text.replace("\n", " ")])


DESCRIPTIONS = ("(A calm old man. He speaks slowly.)", "（一位老人。他说话很慢！）", "（平静。）", "(Angry! Loud?)")


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_a_description_at_the_start_stays_whole(description):
    segmenter = Segmenter(Segmentation(), TurnConfig(style_in_text=True, style="calm"))
    first, second = (*segmenter.feed(f"{description}Hello there. We go."), *segmenter.flush())
    assert (first.text, first.start, second.text) == ("Hello there.", 0, "We go.")
    assert (first.turn_config.style, second.turn_config.style) == (description[1:-1], "calm")
    assert segments_of(f"{description} Hello there. We go.")[-1] == "We go."
    assert segments_of(f"{description} Hello there. We go.")[0].startswith(description)


def test_a_parenthesis_that_does_not_close_holds_no_turn():
    text = "(" + "It rains a lot in May. " * 20
    assert len(segments_of(text)) > 5
    assert len(segments_of("It is so. (He left. She came. They ate.")) == 4
    assert wait("(It rains. We go.") == DOUBTFUL_WAITS


def test_a_description_waits_for_the_text_that_it_steers():
    assert wait("(A calm old man.)", style_in_text=True) is None
    assert wait("(A calm old man.)Hello.", style_in_text=True) == 1
    assert wait("(A calm old man.)") == 1
