"""Text that arrives in parts is cleaned and spelled as the whole text would be, and as early as it is certain."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from voxcpm_server.text.arriving import ArrivingSpelling
from voxcpm_server.text.lexicon import Lexicon, WordList, respelled
from voxcpm_server.text.preparation import replacements
from voxcpm_server.text.words.characters import spoken

WORDS = {
    "gif": "jif",
    "GIF": "G I F",
    "new york": "big apple",
    "york minster": "church",
    "a b": "ab",
    "b": "bee",
    "é": "accent",
    "北京": "capital",
    "京都": "kyoto",
    "كتاب": "book",
    "한국": "korea",
    "e": "letter",
}
LEXICON = Lexicon(WordList(WORDS))
PIECES = [
    *(
        "gif",
        "GIF",
        "new",
        "york",
        "minster",
        "a",
        "b",
        "e",
        "x",
        "é",
        "e\u0301",
        "\u0301",
        "\u0323",
        "北",
        "京",
        "都",
        "，",
        "。",
    ),
    *(
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\x00",
        "\u00ad",
        "\u200b",
        "\u200c",
        "\u200d",
        "\ufe0f",
        "-",
        ".",
        "1",
        "'",
        "{",
        "}",
        "ni3",
        "(",
    ),
    *(
        "ك",
        "ت",
        "ا",
        "ب",
        "\u1112",
        "\u1161",
        "\u11ab",
        "국",
        "한",
        "क",
        "\u094d",
        "ष",
        "👩",
        "🔬",
        "🇩",
        "🇪",
        "\u3000",
        "ｇ",
    ),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)


def whole(text: str, lexicon: Lexicon) -> str:
    clean = spoken(text)
    return respelled(clean, list(replacements(clean, lexicon)))


def fed(text: str, cuts: list[int], lexicon: Lexicon) -> tuple[str, list[int], list[tuple[int, int]], list[str]]:
    spelling, places = ArrivingSpelling(lexicon), [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    parts = [spelling.feed(text[start:end]) for start, end in pairwise(places)]
    parts.append(spelling.end(len(text)))
    ends = [end for part in parts for end in part.ends]
    wholes = [range for part in parts for range in part.wholes]
    return "".join(part.text for part in parts), ends, wholes, [part.text for part in parts]


@given(TEXTS, st.lists(st.integers(0, 100), max_size=8), st.booleans())
@example("e\u00ad\u0301 gif", [1, 2], True)
@example("new york minster", [8, 9], True)
@example("a bxa b", [3], True)
@example("\u1112\u1161\u11ab국", [1, 2], True)
@example("{ni3}{ni", [3], True)
@example("gif\u200d ", [], False)
def test_any_division_gives_the_text_of_the_whole(text, cuts, has_words):
    lexicon = LEXICON if has_words else Lexicon()
    made, ends, wholes, _ = fed(text, cuts, lexicon)
    assert made.rstrip() == whole(text, lexicon)
    one = fed(text, [], lexicon)
    assert (ends, wholes) == (one[1], one[2])
    assert len(ends) == len(made) and ends == sorted(ends) and all(0 < end <= len(text) for end in ends)


@given(TEXTS, st.booleans())
def test_what_was_given_out_depends_on_the_text_so_far_alone(text, has_words):
    lexicon = LEXICON if has_words else Lexicon()
    by_character = ArrivingSpelling(lexicon)
    given_out = ""
    for at, char in enumerate(text, 1):
        given_out += by_character.feed(char).text
        at_once = ArrivingSpelling(lexicon)
        assert at_once.feed(text[:at]).text == given_out and at_once.read == by_character.read


@pytest.mark.parametrize(
    ("text", "early"),
    [
        ("Hello world", "Hello worl"),
        ("Hello ", "Hello "),
        ("cafe", "caf"),
        ("这是一个很长的", "这是一个很长"),
        ("a gif", "a "),  # or gifts
        ("in new y", "in "),
        ("in new zo", "in new z"),
        ("say {ni", "say "),
    ],
)
def test_text_is_given_out_as_soon_as_it_is_certain(text, early):
    assert ArrivingSpelling(LEXICON).feed(text).text == early
