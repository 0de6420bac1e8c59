"""Markdown and HTML are taken out of text as it arrives, whatever its division into messages."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxcpm_server.text.markup.output import HOLD, Piece
from voxcpm_server.text.markup.remover import MarkupRemover


def pieces_of(*parts: str) -> list[Piece]:
    remover = MarkupRemover()
    pieces = [piece for part in parts for piece in remover.feed(part)]
    return pieces + remover.let_go()


def plain(*parts: str) -> str:
    return "".join(piece.text for piece in pieces_of(*parts))


AS_WRITTEN = [
    *("Plain words.", "2 * 3 * 4 = 24", "2*3*4", "2**10", "x = a*b + c*d", "snake_case_name", "a < b"),
    *("a < b and c > d", "if a <b then c is larger", "List<String> and Map<String, List<int>>", "x<y", "5 > 3"),
    *("It costs $5 and $10.", "$20k or $5-$10, 5$ and US$3.", "A $$$ place.", "AT&T and R&D", "fish & chips; &c."),
    *("[sic]", "a[0] and b[i][j]", "[1, 2]", "see [1]", "(not) [a] (link)", "~5 and ~/home", "5* hotel", "C# and F#"),
    *("#1 of #2", "-5 degrees", "+1 (555) 123", "*.py and *.txt", "*args", "100% _", "Look! Wow!! ![no", "a | b"),
    *("$x_1 * y_1$ and $\\alpha*\\beta*\\gamma$", "\\(a*b*c\\) and \\[x_1 _y_ z\\]", "$$a*b*c$$", "Say (: hello :)"),
    *("C:\\Users\\name", "it`s", "a ` b", "3 x 4", "1986. A good year", "10", "1.5 and 2)", "<3", "<- and ->", "<"),
    *("[", "![", "&", "&amp", "\\", "|", "a|", "$", "a *", "a **", "a `", "a ~~", "[a](", "[a](b", "[a](b c)"),
]


@pytest.mark.parametrize("text", AS_WRITTEN)
def test_marks_that_are_no_markup_stay(text: str):
    assert plain(text).strip() == text.strip()


READINGS: list[tuple[str, str]] = [
    # emphasis
    ("**Bold** and *italic*, __bold__ and _italic_.", "Bold and italic, bold and italic."),
    ("***Both*** of **bold with *italic* inside**, ~~gone~~.", "Both of bold with italic inside, gone."),
    ("**One sentence. Two sentences.** Three.", "One sentence. Two sentences. Three."),
    (
        "**" + "A long sentence in bold letters goes on. " * 9 + "End.**",
        "A long sentence in bold letters goes on. " * 9 + "End.",
    ),
    ("*Roses are red,\nviolets are blue.*", "Roses are red,\nviolets are blue."),
    ("这是**重点**内容，*你好*。", "这是重点内容，你好。"),
    ("un*believ*able and price*quantity, *a*", "unbelievable and price*quantity, a"),
    ("**Note:**text and pre**fix**es", "Note:text and prefixes"),
    # links and images
    ('A [link](http://x.y/z "Title") and [another](<a b>), [third](a(b)c).', "A link and another, third."),
    ("A [ref][1] and [ref][].\n\n[1]: http://x.y 'Title'\n[ref]: <http://z>\nEnd.", "A ref and ref.\n\nEnd."),
    ("[**Bold** `code`](x) and ![alt text](y.png)end", "Bold code and end"),
    ("[![badge](a.svg)](b) Text", " Text"),
    ("<https://x.y> and <me@x.y>", "https://x.y and me@x.y"),
    # footnotes
    ("True[^1] and false[^note].\n\n[^1]: The source.", "True and false.\n\n"),
    ("A[^1].\n\n[^1]: One.\n\n    Its second paragraph.\n[^2]: Two.\n\nEnd.", "A.\n\n\n\nEnd."),
    # code
    ("Run `ls -l *.py*` and ``a`b``.", "Run ls -l *.py* and a`b."),
    ("See:\n```python\nx = 1\n```\nDone.", "See:\n\nDone."),
    ("See:\n~~~~\nx\n~~~\n~~~~\nDone.", "See:\n\nDone."),
    ("```\nnever closed\n\n# still code", ""),
    ("A\n\n    indented code\n    more\n\nB", "A\n\n\nB"),
    ("1. Step:\n\n   ```sh\n   make\n   ```\n2. Next", "1. Step:\n\n2. Next"),
    ("> ```\n> code\n> ```\n> text", "text"),
    ("> ```\n> code\ntext", "text"),
    ("```inline``` fence", "inline fence"),
    # headings, rules, quotations
    ("# One\n## Two ##\nThree\n===\nFour\n---\nFive", "One\n\nTwo\n\nThree\n\nFour\n\nFive"),
    ("A\n\n---\n\n* * *\n___\nB", "A\n\n\nB"),
    ("> One\n> two\n>\n> > three\n\nFour", "One\ntwo\n\nthree\n\nFour"),
    ("> [!NOTE]\n> Text\n\n> [!tip]", "Note\n\nText\n\nTip"),
    # lists
    ("- one\n- two\n  - three\n    more\n* four\n+ five\n• six", "one\n\ntwo\n\nthree\nmore\n\nfour\n\nfive\n\nsix"),
    ("- [ ] open\n- [x] done\n1. [X] third", "open\n\ndone\n1. third"),
    ("1. one\n2) two\n   - three\n10. ten", "1. one\n2) two\n\nthree\n10. ten"),
    ("- **Bold**: text\n* *Italic*\n- - nested", "Bold: text\n\nItalic\n\nnested"),
    # tables
    ("| A | B |\n|---|:-:|\n| 1 | **2** |\n|  | x\\|y |\n\nEnd", "A, B\n\n1, 2\n\nx|y\n\n\nEnd"),
    ("A | B\n--- | :-:\n1 | `2`\n**3** | x \\| y | z\nText", "A, B\n\n1, 2\n\n3, x | y, z\n\nText"),
    ("| A | B |\n|---|---|\n| one<br>two | |", "A, B\n\none two\n\n"),
    ("|A|B|\n|-|-|\n|1|2|", "A, B\n\n1, 2\n\n"),
    # HTML
    ("a<br>b<br/>c <b>bold</b> <span class='x y'>text</span>", "a\nb\nc bold text"),
    ("a <!-- comment\n\n- with lines --> b", "a  b"),
    ("<p>One</p><p>Two</p><script>x = '<b>';</script>Three", "One\n\nTwo\n\nThree"),
    ("&lt;b&gt; &amp; &#65;&nbsp;&copy;", "<b> & A\xa0©"),
    ("\\*no\\* \\# \\` \\<b>", "*no* # ` <b>"),
    ("line\\\nbreak", "line\nbreak"),
    # chains of thought
    ("<think>\nLet me see.\n\n- `</b>`\n</think>\n\nThe answer.", "\n\nThe answer."),
    ("Well. <think>never closed", "Well. \n\n"),
    ("thoughts before</think>The answer.", "thoughts before\n\nThe answer."),
]


@pytest.mark.parametrize(("text", "expected"), READINGS)
def test_markup_is_not_spoken(text: str, expected: str):
    assert plain(text) == expected


MOST_CALLS = 150  # of functions for each character


MARKS = [
    *(
        "*",
        "**",
        "_",
        "__",
        "~~",
        "`",
        "``",
        "```",
        "[",
        "]",
        "](",
        "](b)",
        "![",
        ")",
        "<",
        ">",
        "<b>",
        "</b>",
        "<think>",
    ),
    *(
        "</think>",
        "<!--",
        "-->",
        "&",
        "&amp;",
        ";",
        "\\",
        "$",
        "$$",
        "\\(",
        "\\)",
        "|",
        "| ",
        "\n",
        "\n\n",
        "\n- ",
        "\n# ",
    ),
    *("\n```\n", "\n> ", "\n    ", "\n1. ", "\n| a | b |\n|--|--|\n", "\n---\n", "[^1]", "\n[a]: b\n", " ", " ", "\t"),
    *(
        "long text " * 11,
        "[long text" * 13,
        "**" + "x" * 121,
        "word",
        "Two words.",
        "数",
        "5",
        "x",
        "!",
        ":",
        "[x] ",
        "\r\n",
    ),
]
TEXT = st.lists(st.sampled_from(MARKS), max_size=40).map("".join)


def cut(text: str) -> st.SearchStrategy[list[str]]:
    """Divisions of a text into messages."""
    places = st.lists(st.integers(0, len(text)), max_size=12).map(sorted)
    return places.map(lambda cuts: [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])


def by_character(pieces: list[Piece]) -> list[tuple[str, int]]:
    return [(char, piece.end) for piece in pieces for char in piece.text or ["left out"]]


def test_what_is_left_out_of_a_thought_ends_where_it_stands():
    """Also if a link is defined inside of the thought."""
    ends = [piece.end for piece in pieces_of("*`*<think><b>\n[a]: b\n")]
    assert ends == sorted(ends) and ends[-1] == 21


@settings(max_examples=150, deadline=None)
@given(TEXT | st.text(max_size=100), st.data())
def test_every_division_into_messages_gives_the_same_text(text: str, data: Any):
    whole = pieces_of(text)
    assert pieces_of(*data.draw(cut(text))) == whole
    assert pieces_of(*text) == whole
    ends = [piece.end for piece in whole]
    assert ends == sorted(ends)
    assert all(0 <= end <= len(text) for end in ends)


@pytest.mark.parametrize("length", [HOLD - 3, HOLD - 2, HOLD - 1, HOLD, HOLD + 1, 3 * HOLD])
@pytest.mark.parametrize(
    "marks", ["[{}](b) c", "**{}** c", "*{}* c", "![{}](b) c", "`{}` c", "[{}[^1] c", "a | {}\n--|--\n", "a*{}*"]
)
def test_the_limit_of_waiting_does_not_depend_on_messages(marks: str, length: int):
    text = marks.format("x" * length)
    assert pieces_of(*text) == pieces_of(text)


@settings(max_examples=100, deadline=None)
@given(TEXT, TEXT)
def test_what_has_left_is_never_revised(text: str, more: str):
    before, after = (MarkupRemover().feed(one) for one in (text, text + more))
    assert after[: len(before)] == before


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(MARKS), max_size=12).map("".join))
def test_text_behind_marks_waits_no_longer_than_stated(text: str):
    remover = MarkupRemover()
    remover.feed(text)
    for _ in range(2 * HOLD):
        remover.feed("a ")
    remover.feed("\n\n")
    if not any(open in text for open in ("<", "```", "|", "]", "    ", "\t")):
        assert not remover.held


@pytest.mark.parametrize(
    "text", ["Plain words, (with) marks; they pass at once.", "5 * 3 = 15, a < b", "It costs $5 now"]
)
def test_plain_text_passes_at_once(text: str):
    remover = MarkupRemover()
    waiting = 0
    for char in text:
        remover.feed(char)
        waiting = max(waiting, len(remover.held))
    assert waiting <= 3


def calls_of(text: str) -> int:
    """The number of functions that are called for a text."""
    count = 0

    def on_event(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        pieces_of(text)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "unit",
    [
        *(
            "[",
            "*",
            "**a ",
            "_a ",
            "<",
            "<a ",
            "`",
            "`a``b```c ",
            "![",
            "[a](b ",
            "[a](b'",
            "[a](",
            "$a ",
            "&a",
            "]",
            "\\",
        ),
        *(
            "\n- ",
            "> ",
            "| a ",
            "|",
            "#",
            "-",
            "~",
            "a_",
            "[^",
            "<!-",
            "\n    a",
            "[a]: ",
            "[x",
            "[[a]",
            "*a_b ",
            "\n1. ",
        ),
        *("![a", "<think>", "(", "\n\n", "- ", "a* ", "=", "][", "`\n", "</", "<a b='", "\n[a]:"),
    ],
)
def test_the_time_for_marks_without_their_half_is_linear(unit: str):
    first, second = calls_of(unit * (3000 // len(unit))), calls_of(unit * (6000 // len(unit)))
    assert second < 2.5 * first
    assert second < 6000 * MOST_CALLS
