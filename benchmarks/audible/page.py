"""The page of `benchmarks.audible`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.audible.rows import BEGINNING, LEVELS
from benchmarks.pages.markdown import grid, listed

HEADS = (
    "voice, audio|first audio, ms|first sound heard, ms|p95|silence, ms|not sent, ms|late|other samples|word errors|"
    "at the beginning"
)


def line(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row."""
    return [
        f"{row['voice']}, {row['mode']}",
        *(f"{row[name]:.0f}" for name in ("first_ms", "heard_ms", "heard_p95_ms", "silence_ms")),
        f"{row['trimmed_ms']:.0f} ({row['trimmed_least_ms']:.0f} to {row['trimmed_most_ms']:.0f})",
        *(str(row[name]) for name in ("late", "different")),
        *(f"{100 * row[name]:.1f} %" for name in ("word_errors", "beginning_errors")),
    ]


def _opening(row: Mapping[str, Any]) -> list[str]:
    passes: Mapping[Any, Sequence[float]] = row["passes"]
    least, middle, most = row["opening"]
    times = [f"{value[1]:.0f} ({value[0]:.0f} to {value[2]:.0f})" for value in passes.values()]
    return [row["voice"], f"{middle:.0f} ({least:.0f} to {most:.0f})", *times]


def render(table: Mapping[str, Any]) -> str:
    """The page."""
    heads = f"voice|first 20 ms, dBFS|{'|'.join(f'{level} dBFS' for level in LEVELS)}"
    return f"""# The first sound of a stream

A server spoke {table["sentences"]} sentences with each voice, one at a time: with all audio of the model (whole), and
without the silence at its start (trimmed, the default). Both have the same seeds. A listener plays audio as soon as it
arrives, and hears a window of 5 ms above -45 dBFS. Times are medians. They depend on the load of the host, and so do
late streams: the first message of trimmed audio is shorter, and the next one has to come sooner.

{grid(HEADS, map(line, table["rows"]))}

`silence` is the audio before the first sound, `not sent` that which was left out, with its range. Playback of a `late`
stream runs out of audio. `other samples` are streams that differ from the whole audio after what was left out. The word
errors are those of pocketsphinx: of all words, and of the first {BEGINNING} of each sentence.

## Where speech begins

When the audio passes a level, in ms: median, and range over the sentences.

{grid(heads, map(_opening, table["onsets"]))}

A step of this model is {table["step_ms"]:g} ms of audio, model {table["model"]}, {table["run"]}:

    {table["command"]}

{listed(table["versions"])}.
"""
