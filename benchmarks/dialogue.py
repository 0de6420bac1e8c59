"""Delays and silences of a voice agent, whose text a language model writes slowly, word by word.

    python -m benchmarks.dialogue --model demo --streams 1 --dialogues 3 --words 4,once
    python -m benchmarks.dialogue --target HOST:PORT --streams 1,16 --json dialogue.json --page dialogue.md

A dialogue is a text of several sentences that nobody else speaks. Each word is a message; the space before it belongs
to it. A row is one way of writing and one number of streams: dialogues that begin at random, each line one after the
other. Playback begins with the first audio and goes on in real time. The row has

* delay: from the last character of the first sentence (of the first segment, where that is shorter) to its first audio
  here. `wait` is how much of it was unavoidable: until the next word is sent, or until the server waits no longer
  (`--max-wait`). `engine` is the server's time from there to the first audio. `overhead` is what is left.
* silence: for how long playback was dry at the border of two segments, inside a sentence and between sentences. `late`
  is the part of it after the second segment's text was written and the wait for its next word was over.
* dry: how often playback ran dry within a segment. wall: from the last character to the last audio.

The stream is open before the first word is due. A time of sending is when `send_text` was called; `lag` says how much
later that was than it was due. Segments of a checkpoint that never stops are bounded with `--max-steps`: 9 words take
about 22 steps. Flags that are not listed here go to the server. Exits with status 1 if a call failed.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import capacity, dialogue_page, servers
from benchmarks.dialogue_calls import Dialogue, Speaking, Task, perform
from benchmarks.dialogue_rows import HEADINGS, Row, example, line, row
from benchmarks.dialogue_scripts import Schedule, schedule, script, texts
from benchmarks.hardware import command, versions
from benchmarks.load import Callers, processes
from voxcpm_client import ModelInfo

SERVER_MAX_WAIT = 0.25  # seconds; the server's default
APART = 1.0  # seconds within which the streams begin
SHARED = ("voice", "first_segment", "max_wait", "max_steps", "timesteps", "seed")  # options of every call


def lines(schedule: Schedule, streams: int, count: int, source: Iterator[Sequence[str]], seed: int) -> list[list[Task]]:
    """A line for each stream, of as many dialogues each, `count` or a few more in all."""
    waits = random.Random(seed)
    each = -(-count // streams)
    try:
        return [
            [Task(script(next(source), schedule), waits.uniform(0, APART)) for _ in range(each)] for _ in range(streams)
        ]
    except StopIteration:
        raise SystemExit("there are no more texts of their own; measure fewer dialogues in one run") from None


def measure(
    targets: Sequence[str], options: argparse.Namespace, schedules: Sequence[Schedule]
) -> Iterator[tuple[Row, dict[str, Any] | None]]:
    """A row for each cell, and a dialogue to draw, if one succeeded."""
    speaking = Speaking(options=_shared(options), patience=options.patience, seconds=options.seconds)
    max_wait = SERVER_MAX_WAIT if options.max_wait is None else options.max_wait
    source = texts(options.sentences, options.seed)
    with Callers(targets, options.clients, perform) as callers:
        busiest = max(options.streams)
        short = (text[:1] for text in source)
        callers.speak(lines(schedule("once", 0), busiest, busiest, short, options.seed), speaking)  # to warm up
        for streams in options.streams:
            for writing in schedules:
                spoken = lines(writing, streams, options.dialogues, source, options.seed)
                dialogues: list[Dialogue] = callers.speak(spoken, speaking)
                good = [dialogue for dialogue in dialogues if dialogue.code == "OK"]
                drawn = example(writing.name, streams, good[0]) if good else None
                yield row(writing.name, streams, dialogues, max_wait), drawn


def _shared(options: argparse.Namespace) -> Mapping[str, Any]:
    return {name: getattr(options, name) for name in SHARED if getattr(options, name) is not None}


def conditions(options: argparse.Namespace, info: ModelInfo) -> dict[str, Any]:
    """The conditions of a run, for its page."""
    return {
        "command": command(),
        "run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions("torch", "triton", "grpcio") | {"dtype": info.dtype},
        "model": info.model,
        "slots": info.max_slots,
        "sentences": options.sentences,
        "options": dict(_shared(options)),
        "max_wait_s": SERVER_MAX_WAIT if options.max_wait is None else options.max_wait,
        "pause_s": options.pause,
        "clients": options.clients,
    }


def flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    servers.add_flags(parser)
    parser.add_argument("--streams", type=_counts, default=[1, 16], help="counts of dialogues at a time")
    parser.add_argument(
        "--words",
        default="2,4,8,16,once,pause",
        help="words a second; `once`: all in one message; `pause`: 8 a second, and a pause after the first sentence",
    )
    parser.add_argument("--pause", type=float, default=5.0, help="its seconds")
    parser.add_argument("--dialogues", type=int, default=20, help="of each row, and up to a round number for each line")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which a row begins no other dialogue")
    parser.add_argument("--sentences", type=int, default=4, help="of a dialogue")
    parser.add_argument("--voice", help="a preset or an id; default: none")
    parser.add_argument("--first-segment", choices=("sentence", "eager"), help="how soon the first one is cut")
    parser.add_argument("--max-wait", type=float, help=f"seconds, 0 for no limit; default: {SERVER_MAX_WAIT}, unsent")
    parser.add_argument("--max-steps", type=int, help="of a segment")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds that a dialogue may take")
    parser.add_argument("--clients", type=int, default=processes(), help="processes")
    parser.add_argument("--seed", type=int, default=1, help="of texts, beginnings and speech")
    parser.add_argument("--json", type=Path, help="write the table here too")
    parser.add_argument("--page", type=Path, help="and as a page of Markdown")
    parser.add_argument("--plot", type=Path, help="draw a dialogue of each way of writing here")
    return parser


def main() -> None:
    parser = flags()
    options, extra = parser.parse_known_args()  # the rest goes to the server
    try:
        schedules = [schedule(name, options.pause) for name in options.words.split(",")]
    except ValueError as error:
        parser.error(f"--words: {error}")
    rows: list[Row] = []
    examples: list[dict[str, Any]] = []
    print(HEADINGS)
    with servers.reached(options, extra) as targets:
        about = conditions(options, capacity.describe(targets[0]))
        for one, drawn in measure(targets, options, schedules):
            rows.append(one)
            examples += [drawn] if drawn else []
            print(line(one), flush=True)
    write(about | {"rows": [asdict(one) for one in rows], "examples": examples}, options)
    failed = sum((Counter(one.codes) for one in rows), Counter())
    if failed:
        raise SystemExit(f"calls failed: {dict(failed)}")


def write(table: dict[str, Any], options: argparse.Namespace) -> None:
    """Write the files that the flags name."""
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")
    if options.plot:
        from benchmarks import plots

        plots.dialogue(table, options.plot)
    if options.page:
        options.page.write_text(dialogue_page.page(table, options.plot and options.plot.name))


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
