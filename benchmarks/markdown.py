"""How pages of results are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def grid(heads: str, lines: Iterable[Sequence[str]]) -> str:
    """A table; `heads` are separated by |; all columns but the first hold numbers, unless there are two."""
    names = heads.split("|")
    rule = ["---", *["---:"] * (len(names) - 1)] if len(names) > 2 else ["---"] * len(names)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (names, rule, *lines))


def ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def listed(versions: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in versions.items())
