"""The page of `benchmarks.dialogue`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.dialogue.rows import LONG_MS, OVERHEAD_MS
from benchmarks.pages.markdown import grid, listed, ms
from benchmarks.pages.markdown import picture as markdown_picture

SCHEDULES = {"once": "all at once", "pause": "with a pause"}


def render(table: Mapping[str, Any], picture: str | None) -> str:
    """The page. picture: a file beside it, if there is one."""
    rows = table["rows"]
    sections = [
        f"# Text that is written slowly: {table['versions'].get('device', 'one device')}\n\nA dialogue is a text of "
        f"{table['sentences']} sentences that is sent word by word; the space before a word is sent with the word. "
        "Playback begins with the first audio and goes on in real time. All times are in ms, on the client's clock.",
        "## Delay of the first audio\n\nThe delay counts from the last character of the first sentence, or of the "
        "first segment if that is shorter, to its first audio at the client. It has three parts. The wait is the part "
        f"until the server can know that the sentence has ended: until the next word is sent, or {_wait(table)}. The "
        "engine's part is the server's time from there to the first audio. The overhead is the rest; the goal is at "
        f"most {OVERHEAD_MS:g} ms.\n\n" + _delays(rows),
        "## Silence\n\nA silence is a time without audio at the border of two segments, inside a sentence or between "
        f"two sentences. The table gives its length and the share of borders with more than {LONG_MS:g} ms. Late is "
        "the server's part of a silence: the part after the text of the next segment was sent and the wait for the "
        "word after it was over. Text that is written more slowly than it is spoken leaves silence in any case.\n\n"
        + _silences(rows),
        "## Last audio\n\nThe wall time counts from the last character to the last audio. A gap is a silence within a "
        "segment. Cuts counts the segments by the reason of the cut at their end, where the server sent one. The lag "
        "is how late the client itself sent.\n\n" + _ends(rows),
        markdown_picture(picture),
        _conditions(table),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _wait(table: Mapping[str, Any]) -> str:
    seconds = table["max_wait_s"]
    return f"for {1e3 * seconds:g} ms at most" if seconds else "without a limit"


def _cell(row: Mapping[str, Any]) -> list[str]:
    return [SCHEDULES.get(row["schedule"]) or row["schedule"], str(row["streams"])]


def _delays(rows: list[Mapping[str, Any]]) -> str:
    lines = [
        [
            *_cell(row),
            str(row["dialogues"]),
            *(ms(row["delay"][column]) for column in ("p50_ms", "p95_ms")),
            *(ms(row[part]["p50_ms"]) for part in ("unavoidable", "engine")),
            *(ms(row["overhead"][column]) for column in ("p50_ms", "p95_ms", "max_ms")),
            str(row["overhead_above"]),
        ]
        for row in rows
    ]
    heads = "words/s|streams|dialogues|delay p50|p95|wait p50|engine p50|overhead p50|p95|max"
    return grid(f"{heads}|above {OVERHEAD_MS:g} ms", lines)


def _silences(rows: list[Mapping[str, Any]]) -> str:
    lines = [
        [
            *_cell(row),
            where,
            str(silence["all"]["count"]),
            *(ms(silence["all"][column]) for column in ("p50_ms", "p95_ms", "max_ms")),
            f"{silence['long_share']:.0%}",
            *(ms(silence["late"][column]) for column in ("p50_ms", "p95_ms", "max_ms")),
        ]
        for row in rows
        for where in ("inside", "between")
        if (silence := row[where])["all"]["count"]
    ]
    return grid(f"words/s|streams|where|borders|p50|p95|max|above {LONG_MS:g} ms|late p50|p95|max", lines)


def _ends(rows: list[Mapping[str, Any]]) -> str:
    lines = [
        [
            *_cell(row),
            ms(row["wall"]["p50_ms"]),
            str(row["segments"]),
            _counts(row["cuts"]),
            str(row["underruns"]["count"]),
            ms(row["underruns"]["max_ms"]),
            _counts(row["codes"]),
            ms(row["sending_lag_p99_ms"]),
        ]
        for row in rows
    ]
    return grid("words/s|streams|wall p50|segments|cuts|gaps|longest|failed calls|lag p99", lines)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "-"


def _conditions(table: Mapping[str, Any]) -> str:
    given = ", ".join(f"{name} {value}" for name, value in table["options"].items())
    lines = [
        ["run", table["run"]],
        ["command", f"`{table['command']}`"],
        ["model", table["model"]],
        ["a pause", f"{table['pause_s']:g} s between the first full stop and the next word"],
        ["options of every call", given or "none"],
        ["slots of an engine", str(table["slots"])],
        ["client processes", str(table["clients"])],
        ["versions", listed(table["versions"])],
    ]
    return "## Conditions\n\n" + grid("|", lines)
