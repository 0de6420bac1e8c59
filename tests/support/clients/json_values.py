"""Values as JSON writes them, of every kind and with the edges of each, for programs that read the JSON of others."""

from __future__ import annotations

import json
from random import Random

from hypothesis import strategies as st

HALF = r"\ud83d"
"""Half of a surrogate pair as JSON writes it; JavaScript cuts texts there."""

NUMBERS = (
    *("0", "-0", "1", "-1", "7.0", "-0.0", "0.5", "1e2", "1e39", "1e400", "-1e400", "1e-400", "NaN", "Infinity"),
    *("9" * digits for digits in (20, 41, 300, 309, 4300, 4301, 5000)),
    f"-{'9' * 400}",
)
STRINGS = tuple(
    f'"{text}"'
    for text in (
        *("", " ", "x", "7", "true", HALF, rf"\ude00{HALF}", rf"a{HALF}b", r"\u0000", r"\ufffe\uffff", r"\n\r", "é"),
        *("data:,x", "data:;base64,!", "../../etc/passwd", "x" * 5000),
    )
)
OTHERS = (
    *("null", "true", "false", "[]", "[1]", '["x"]', "{}", '{"id": "x"}', '{"id": 7}', '{"id": null}', '{"x": 1}'),
    *(f'{{"{HALF}": "x"}}', f'{{"x": "{HALF}"}}', f'{{"id": "{HALF}"}}', '{"x": 1, "x": 2}'),
    *(f"{'[' * depth}{']' * depth}" for depth in (100, 900, 5000)),
    '{"x":' * 500 + "1" + "}" * 500,
)
EDGES = (*NUMBERS, *STRINGS, *OTHERS)
KEYS = ('"id"', '"audio"', '"x"', f'"{HALF}"')


def random_json(random: Random, depth: int = 3) -> str:
    """A value of JSON as text, an edge or a container of others."""
    if depth == 0 or random.random() < 0.7:
        return random.choice(EDGES)
    inner = [random_json(random, depth - 1) for _ in range(random.randrange(4))]
    if random.random() < 0.5:
        return f"[{', '.join(inner)}]"
    return "{" + ", ".join(f"{random.choice(KEYS)}: {one}" for one in inner) + "}"


def json_texts() -> st.SearchStrategy[str]:
    """Any value of JSON as text, also with halves of surrogate pairs, long numbers and keys that are there twice."""
    strings = st.text(st.characters(exclude_categories=[]), max_size=20).map(json.dumps)
    digits = st.integers(1, 5000).map("9".__mul__)
    leaves = st.sampled_from(EDGES) | strings | digits | st.floats().map(json.dumps) | st.integers().map(json.dumps)
    return st.recursive(leaves, _containers, max_leaves=6)


def _containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(st.sampled_from(KEYS), inner).map(": ".join), max_size=3)
    lists = st.lists(inner, max_size=3)
    return lists.map(lambda items: f"[{', '.join(items)}]") | pairs.map(lambda items: f"{{{', '.join(items)}}}")
