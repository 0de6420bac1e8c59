"""Measure the delays and silences of a voice agent whose text a language model writes word by word.

    python -m benchmarks.dialogue --model demo --streams 1 --dialogues 3 --words 4,once
    python -m benchmarks.dialogue --target HOST:PORT --streams 1,16 --json dialogue.json --page dialogue.md

A dialogue is a text of several sentences that occurs nowhere else. Each word is a message; the space before a word
belongs to it. A row is one schedule of words and one number of streams. Streams start at random times, and each runs
its dialogues one after the other. Playback begins with the first audio and goes on in real time. The columns of a row:

* delay: from the last character of the first sentence (of the first segment, if that is shorter) to its first audio at
  the client. `wait` is its part until the server can know that the sentence has ended: until the next word is sent, or
  until the server stops waiting (`--max-wait`). `engine` is the server's time from there to the first audio. `overhead`
  is the rest.
* inside, between: the number of borders between segments inside a sentence and between sentences, and the silence of
  playback there. `late` is the part of a silence after the text of the second segment was sent and the wait for its
  next word was over.
* gaps: the number of silences within a segment. wall: from the last character to the last audio. lag: how late the
  client itself called `send_text`.

The stream is open before the first word is due. Use `--max-steps` to bound the segments of a checkpoint that never
stops: 9 words have about 22 steps. Flags that are not listed here go to the server that is started. The exit status is
1 if a call failed.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.dialogue import page
from benchmarks.dialogue.calls import CallParameters, Dialogue, PlannedDialogue, run_stream
from benchmarks.dialogue.rows import HEADINGS, Row, example, line, row
from benchmarks.dialogue.scripts import Schedule, schedule, script, texts
from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser, integers
from benchmarks.pages.files import write_json
from benchmarks.serving import servers
from benchmarks.serving.clients import ClientProcesses, default_processes
from voxcpm_client import Client, ModelInfo

SERVER_MAX_WAIT = 0.25  # seconds; the server's default
APART = 1.0  # seconds within which the streams start
SHARED = ("voice", "first_segment", "max_wait", "max_steps", "timesteps", "seed")  # options of every call


def streams_of(
    schedule: Schedule, streams: int, count: int, source: Iterator[Sequence[str]], seed: int
) -> list[list[PlannedDialogue]]:
    """The dialogues of each stream: `count` in all, rounded up to the same number for each.

    Raises SystemExit if `source` has not enough texts.
    """
    waits = random.Random(seed)
    each = -(-count // streams)
    try:
        return [
            [PlannedDialogue(script(next(source), schedule), waits.uniform(0, APART)) for _ in range(each)]
            for _ in range(streams)
        ]
    except StopIteration:
        raise SystemExit("all texts are used; run fewer dialogues, or split them into several runs") from None


def measure(
    targets: Sequence[str], options: argparse.Namespace, schedules: Sequence[Schedule]
) -> Iterator[tuple[Row, dict[str, Any] | None]]:
    """Yield each row, and a dialogue for the picture if one succeeded."""
    parameters = CallParameters(options=_shared(options), timeout=options.patience, seconds=options.seconds)
    max_wait = SERVER_MAX_WAIT if options.max_wait is None else options.max_wait
    source = texts(options.sentences, options.seed)
    with ClientProcesses(targets, options.clients, run_stream) as clients:
        most = max(options.streams)
        short = (text[:1] for text in source)
        warm_up = streams_of(schedule("once", 0), most, most, short, options.seed)
        clients.run(warm_up, parameters, timeout=parameters.timeout)
        for streams in options.streams:
            for one in schedules:
                planned = streams_of(one, streams, options.dialogues, source, options.seed)
                dialogues: list[Dialogue] = clients.run(planned, parameters, timeout=parameters.timeout)
                good = [dialogue for dialogue in dialogues if dialogue.code == "OK"]
                drawn = example(one.name, streams, good[0]) if good else None
                yield row(one.name, streams, dialogues, max_wait), drawn


def _shared(options: argparse.Namespace) -> Mapping[str, Any]:
    return {name: getattr(options, name) for name in SHARED if getattr(options, name) is not None}


def conditions(options: argparse.Namespace, info: ModelInfo) -> dict[str, Any]:
    """The part of the table that holds the conditions of the run."""
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
    parser = command_parser(__doc__)
    servers.add_flags(parser)
    parser.add_argument("--streams", type=integers, default=[1, 16], help="numbers of streams, separated by commas")
    parser.add_argument(
        "--words",
        default="2,4,8,16,once,pause",
        help="schedules, separated by commas: a number of words a second; `once`: all text in one message; `pause`: 8 "
        "words a second, and a pause after the first sentence",
    )
    parser.add_argument("--pause", type=float, default=5.0, help="seconds of the pause")
    parser.add_argument(
        "--dialogues", type=int, default=20, help="dialogues of each row, rounded up to a multiple of the streams"
    )
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="after so many seconds, a row starts no further dialogue"
    )
    parser.add_argument("--sentences", type=int, default=4, help="sentences of a dialogue")
    parser.add_argument("--voice", help="name of a preset or id of a voice; default: none")
    parser.add_argument("--first-segment", choices=("sentence", "eager"), help="how soon the server cuts the first one")
    parser.add_argument(
        "--max-wait",
        type=float,
        help=f"seconds that the server waits for more text; 0: no limit; default: not sent, {SERVER_MAX_WAIT} s",
    )
    parser.add_argument("--max-steps", type=int, help="most steps of a segment")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--patience", type=float, default=120.0, help="timeout of a dialogue, in seconds")
    parser.add_argument("--clients", type=int, default=default_processes(), help="client processes")
    parser.add_argument("--seed", type=int, default=1, help="seed of the texts, of the starts and of the speech")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--page", type=Path, help="also write the table to this Markdown page")
    parser.add_argument("--plot", type=Path, help="draw a dialogue of each schedule into this file")
    return parser


def main() -> None:
    parser = flags()
    options, extra = parser.parse_known_args()  # all others are the server's
    try:
        schedules = [schedule(name, options.pause) for name in options.words.split(",")]
    except ValueError as error:
        parser.error(f"--words: {error}")
    rows: list[Row] = []
    examples: list[dict[str, Any]] = []
    print(HEADINGS)
    with servers.reached(options, extra) as targets:
        with Client(targets[0]) as client:
            about = conditions(options, client.model_info())
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
        write_json(options.json, table)
    if options.plot:
        from benchmarks.dialogue import figure

        figure.draw(table, options.plot)
    if options.page:
        options.page.write_text(page.render(table, options.plot and options.plot.name))


if __name__ == "__main__":
    main()
