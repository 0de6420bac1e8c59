"""The page of `benchmarks.formats`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.formats.calls import MODES, PART
from benchmarks.formats.compared import EDGE_SECONDS
from benchmarks.pages.markdown import grid, listed

HEADS = "encoding|rate, Hz|turns|samples|delay|padding|length off by|distance, dB|kbit/s|first bytes, ms|beside PCM, ms"


def line(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row."""
    cells = ("encoding", "rate", "mode", "samples", "delay", "padding", "length_error")
    return [
        *(str(row[name]) for name in cells),
        "exact" if row["distance_db"] > 115 else f"{row['distance_db']:.1f}",
        f"{row['bitrate'] / 1e3:.0f}",
        "" if row["first_ms"] is None else f"{row['first_ms']:.0f}",
        "" if row["beside_pcm_ms"] is None else f"{row['beside_pcm_ms']:+.0f}",
    ]


def render(table: Mapping[str, Any]) -> str:
    """The page."""
    rows: Sequence[Mapping[str, Any]] = table["rows"]
    wrong = sum(row["length_error"] != 0 for row in rows)
    lengths = (
        "Every stream has exactly the stated length." if not wrong else f"**{wrong} streams have another length.**"
    )
    return f"""# Formats beside PCM

A server spoke two sentences in every encoding and rate in three ways: `{MODES[0]}`, both in one turn;
`{MODES[1]}`, the first one cut off by an interrupt after {PART:g} s of its audio, then the second one; `{MODES[2]}`, a
flush that ends the turn between them. FFmpeg's libraries decoded each stream.

{lengths} `length off by` is the number of decoded samples less those that header and summary state: delay, samples and
padding. The distance is the signal over the error, beside the same speech as 32-bit float PCM at the same rate, in the
worse turn of a stream, without {1e3 * EDGE_SECONDS:g} ms at each end of a turn. `first bytes` is the median time from
the start of a call to its first bytes of audio, over {table["repeats"]} plain calls, and the last column is the
difference to that of 16-bit PCM at the same rate. Both depend on the load of the host.

{grid(HEADS, map(line, rows))}

A step of this model is {table["step_ms"]:g} ms of audio. `{table["command"]}`, {table["run"]}, model {table["model"]},
{listed(table["versions"])}.
"""
