"""Markdown as people write it has the words that a CommonMark parser finds in all of the text at once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from voxcpm_server.text.markup.remover import MarkupRemover

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
SILENT = ("fence", "code_block", "html_block", "html_inline", "image")
WORD = st.sampled_from(
    [
        "plain",
        "words",
        "2 * 3",
        "snake_case",
        "a < b",
        "$5",
        "don't",
        "x",
        "(so)",
        "AT&T",
        "end.",
        "Ok?",
        "5",
        "été",
        "[sic]",
        "3.5",
        "C#",
    ]
)
PLAIN = st.lists(WORD, min_size=1, max_size=4).map(" ".join)


def wrapped(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    mark = st.sampled_from(
        [
            "**{}**",
            "*{}*",
            "***{}***",
            "~~{}~~",
            "__{}__",
            "_{}_",
            "[{}](http://x.y/a_(b)_c)",
            '[{}](<a b> "Title")',
            "<b>{}</b>",
        ]
    )
    return st.builds(
        lambda mark, text: mark.format(text), mark, inner.filter(lambda text: text[0].isalnum() and text[-1].isalnum())
    )


ATOM = st.sampled_from(
    [
        "`code * x`",
        "``a`b``",
        "![alt *text*](i.png)",
        "<https://x.y/z_a_b>",
        "&amp;",
        "&copy;",
        "\\*",
        "\\#",
        "<br>",
        "<i>i</i>",
    ]
)
INLINE = st.lists(PLAIN | ATOM | wrapped(PLAIN) | wrapped(wrapped(PLAIN)), min_size=1, max_size=5).map(" ".join)
TEXT = INLINE.map(lambda text: f"So {text}")  # a mark at the start of a block is another matter
ROW = st.lists(PLAIN | wrapped(PLAIN), min_size=2, max_size=2).map(lambda cells: f"| {' | '.join(cells)} |\n")
BLOCK = st.one_of(
    TEXT,
    st.lists(TEXT, min_size=2, max_size=3).map("\n".join),
    st.builds("{} {}".format, st.sampled_from(["#", "##", "###### "]), TEXT),
    st.builds("{}\n{}".format, TEXT, st.sampled_from(["---", "====="])),
    st.sampled_from(
        ["---", "* * *", "```py\nx = '**'\n\n# no\n```", "~~~\n```\n~~~", "    indented *code*", "<!-- a *b* -->"]
    ),
    st.builds(
        lambda mark, items: "\n".join(f"{mark} {item}" for item in items),
        st.sampled_from("-*+"),
        st.lists(TEXT, min_size=1, max_size=3),
    ),
    st.builds("1. {}\n   - {}\n   - {}\n2. {}".format, TEXT, TEXT, TEXT, TEXT),
    st.builds("> {}\n> {}\n>\n> - {}".format, TEXT, TEXT, TEXT),
    st.builds("- {}\n\n  {}\n\n  ```\n  code\n  ```".format, TEXT, TEXT),
    st.builds(lambda head, rows: f"{head}|---|:-:|\n{''.join(rows)}", ROW, st.lists(ROW, max_size=3)),
)
DOCUMENT = st.lists(BLOCK, min_size=1, max_size=5).map("\n\n".join)


def words_of(text: str) -> list[str]:
    return text.replace(",", " ").split()


def parsed(text: str) -> list[str]:
    """The words of a text, with the numbers of list items."""
    found: list[str] = []

    def walk(tokens: list[Token]) -> None:
        for token in tokens:
            if token.type == "list_item_open" and token.info:
                found.append(f" {token.info}{token.markup} ")
            elif token.type == "inline":
                walk(token.children or [])
                found.append("\n")
            elif token.type in ("softbreak", "hardbreak") or token.content == "<br>":
                found.append("\n")
            elif token.type not in SILENT:
                found.append(token.content)

    walk(PARSER.parse(text))
    return words_of("".join(found))


@settings(max_examples=100, deadline=None)
@given(DOCUMENT)
def test_documents_have_the_words_of_commonmark(text: str):
    remover = MarkupRemover()
    pieces = [*remover.feed(text), *remover.let_go()]
    assert words_of("".join(piece.text for piece in pieces)) == parsed(text)
