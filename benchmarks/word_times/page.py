"""The page of `benchmarks.word_times`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.pages.markdown import grid, listed

HEADS = "times|median, ms|p95|most|starts: median|p95|ends: median|p95|estimated|behind the audio, ms|p95|CPU a second"


def line(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row."""
    errors = ("median_ms", "p95_ms", "most_ms", "starts_median_ms", "starts_p95_ms", "ends_median_ms", "ends_p95_ms")
    return [
        row["mode"],
        *(f"{row[name]:.0f}" for name in errors),
        f"{row['estimated']} of {row['words']}",
        *(f"{row[name]:.0f}" for name in ("lag_median_ms", "lag_p95_ms")),
        f"{1e3 * row['cpu']:.1f} ms" if row["cpu"] else "",
    ]


def render(table: Mapping[str, Any]) -> str:
    """The page."""
    first, beside = table["rows"][0], table["first_audio"]
    return f"""# The times of words

Flite spoke {first["sentences"]} English sentences through a server, at the pace of speech, and knows when it said each
of their {first["words"]} words. The errors are the distances of the times that the server sent: found by the bundled
aligner, and estimated from the text alone. Some sentences have numbers, names, abbreviations and words that no
dictionary has.

{grid(HEADS, map(line, table["rows"]))}

`behind the audio` is the speech that was sent after the end of a word when its times arrived. `CPU a second` is the CPU
time of the aligner's process for a second of speech, on a core that others use, too.

{beside["streams"]} streams with times and as many without them began together, in pairs of the same text,
{beside["rounds"]} times. The median time from the text to the first audio was {beside["with_ms"]:.0f} ms with times and
{beside["without_ms"]:.0f} ms without.

{table["run"]}:

    {table["command"]}

{listed(table["versions"])}.
"""
