"""Markdown of result pages: tables, times and versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def grid(heads: str, lines: Iterable[Sequence[str]]) -> str:
    """A table. `heads` are its column titles, separated by |.

    Columns after the first are aligned to the right, except in a table of two columns.
    """
    names = heads.split("|")
    rule = ["---", *["---:"] * (len(names) - 1)] if len(names) > 2 else ["---"] * len(names)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (names, rule, *lines))


def ms(value: float | None) -> str:
    """A time in ms, without its unit; "-" for None."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def listed(versions: Mapping[str, Any]) -> str:
    """Versions, separated by commas."""
    return ", ".join(f"{key} {value}" for key, value in versions.items())


def picture(file: str | None) -> str:
    """A picture beside the page; empty without one."""
    return f"![]({file})" if file else ""
