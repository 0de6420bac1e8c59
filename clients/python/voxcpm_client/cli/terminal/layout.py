"""Tables, lists and JSON of values on a terminal, which strings of a server cannot control."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from voxcpm_grpc.text.characters import escaped, escaped_json


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart, with control characters escaped."""
    lines = [list(map(escaped, line)) for line in (headings, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def fields(values: Mapping[str, object]) -> str:
    """One line for each value that is not empty: its name in words, then the value with control characters escaped."""
    shown = {
        name.replace("_", " "): escaped(_plain(value))
        for name, value in values.items()
        if value not in (None, "", {}, ())
    }
    width = max(map(len, shown), default=0)
    return "\n".join(f"{name:{width}}  {value}" for name, value in shown.items())


def json_line(value: object) -> str:
    """The value as JSON on one line, with control characters escaped and other characters as they are."""
    return escaped_json(json.dumps(value, ensure_ascii=False))


def _plain(value: object) -> str:
    if isinstance(value, dict):
        pairs = cast(dict[str, object], value).items()
        return ", ".join(f"{key}={_plain(inner)}" for key, inner in pairs)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, cast(Sequence[object], value)))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
