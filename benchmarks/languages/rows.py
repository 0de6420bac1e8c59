"""A row for each language, and the page of all."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.dialogue.calls import Dialogue
from benchmarks.dialogue.playback import audio_after, first_audio_after
from benchmarks.languages.scripts import pauses
from benchmarks.pages.markdown import grid, listed, ms
from benchmarks.segmentation.arrival import INTERVAL
from benchmarks.segmentation.corpus import spoken_end

FIRST_GOAL = 0.5  # seconds from the end of the first sentence to the first audio
WAITS_GOAL = 5  # times max_wait, from a pause until the waiting text is a segment
SOUND_GOAL = 0.1  # seconds from that segment to its first audio, for which the host has to be quiet
COLUMNS = "language|dialogues|first p50|first max|above the goal|pauses|pause p50|pause max|above the goal|failed calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Seconds; median and maximum are None if there is nothing to measure. above: the number beyond the goal."""

    count: int
    median: float | None
    maximum: float | None
    above: int

    @classmethod
    def of(cls, seconds: Sequence[float], above: int) -> Delays:
        return cls(
            count=len(seconds),
            median=statistics.median(seconds) if seconds else None,
            maximum=max(seconds, default=None),
            above=above,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The dialogues of one language.

    first: from the end of the first sentence to the first audio
    pause: from the last character before a pause to the first audio of the segment with its last letter
    codes: of failed calls
    """

    language: str
    dialogues: int
    first: Delays
    pause: Delays
    codes: Mapping[str, int]


def row(language: str, dialogues: Sequence[Dialogue], turn: int, max_wait: float) -> Row:
    good = [dialogue for dialogue in dialogues if dialogue.code == "OK"]
    first = [first_audio_after(one, one.script.sentence_ends[0]) for one in good]
    held = [
        audio_after(one, end, spoken_end(one.script.text[:end])) for one in good for end in pauses(one.script, turn)
    ]
    goal = WAITS_GOAL * max_wait + SOUND_GOAL
    return Row(
        language=language,
        dialogues=len(good),
        first=Delays.of(first, sum(seconds > FIRST_GOAL for seconds in first)),
        pause=Delays.of(held, sum(seconds > goal for seconds in held)),
        codes=Counter(dialogue.code for dialogue in dialogues if dialogue.code != "OK"),
    )


def line(row: Row) -> list[str]:
    """The cells of COLUMNS."""
    first, pause = row.first, row.pause
    failed = ", ".join(f"{code} {count}" for code, count in row.codes.items())
    return [
        row.language,
        str(row.dialogues),
        *(_cell(seconds) for seconds in (first.median, first.maximum)),
        str(first.above),
        str(pause.count),
        *(_cell(seconds) for seconds in (pause.median, pause.maximum)),
        str(pause.above),
        failed or "-",
    ]


def _cell(seconds: float | None) -> str:
    return ms(None if seconds is None else 1000 * seconds)


def render(table: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The page of the conditions `table` and the rows."""
    conditions = [
        ["run", table["run"]],
        ["command", f"`{table['command']}`"],
        ["model", table["model"]],
        ["sentences of a dialogue", str(table["sentences"])],
        ["between words or characters", f"{1000 * INTERVAL:.0f} ms"],
        ["a pause", f"{table['pause_s']:g} s after every {table['turn']} sentences"],
        ["options of every call", ", ".join(f"{name} {value}" for name, value in table["options"].items())],
        ["versions", listed(table["versions"])],
    ]
    soon, waits = 1000 * FIRST_GOAL, 1000 * WAITS_GOAL * table["max_wait_s"]
    return f"""# Delays in every script: {table["versions"].get("device", "one device")}

A dialogue is the beginning of one of the [marked texts](../segmentation/languages/). Its text arrives word by word, or
by visible characters in scripts without spaces between words, and pauses between turns. No call names the language. All
times are in ms, on the client's clock.

{grid(COLUMNS, [line(one) for one in rows])}

`first` is the time from the last character of the first sentence to the first audio; 0 means that the audio came
before. Its goal is {soon:.0f} ms. `pause` is the time from the last character before a pause to the first audio of the
segment that holds it. Its goal is {WAITS_GOAL} times `max_wait`, {waits:.0f} ms, and {1000 * SOUND_GOAL:.0f} ms for
the engine and the way to the client.

## Conditions

{grid("|", conditions)}
"""
