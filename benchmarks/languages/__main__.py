"""Measure the delays of dialogues in every script, through a server, while their text arrives word by word.

    python -m benchmarks.languages --model demo
    python -m benchmarks.languages --model tests/checkpoints/tiny --timesteps 4
    python -m benchmarks.languages --target HOST:PORT --languages th,km --json languages.json --page languages.md

A dialogue is the beginning of a marked text of `benchmarks/segmentation/languages`. A word arrives each 50 ms, or a
visible character in scripts without spaces between words, and the text pauses between turns. Segments are bounded by
`--max-steps`, because the bundled voice does not read all scripts. With the tiny model of the tests the engine takes
little time, so that the delays are those of the text alone. Flags that are not listed here go to the server that
is started. The exit status is 1 if a call failed.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.dialogue.calls import CallParameters, Dialogue, PlannedDialogue, run_stream
from benchmarks.languages.rows import COLUMNS, Row, line, render, row
from benchmarks.languages.scripts import script
from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser, words
from benchmarks.pages.files import write_json
from benchmarks.segmentation.corpus import LANGUAGES, load_language
from benchmarks.serving import servers
from benchmarks.serving.clients import ClientProcesses
from voxcpm_client import Client

SCRIPTS = ("en", "ru", "el", "he", "ar", "hi", "th", "lo", "km", "my", "zh", "ja", "ko")  # a language of each
MAX_WAIT = 0.25  # seconds; the server's default
PATIENCE = 120.0  # seconds; timeout of a dialogue


def measure(targets: Sequence[str], options: argparse.Namespace) -> Iterator[Row]:
    calls = {"max_steps": options.max_steps, "timesteps": options.timesteps, "seed": options.seed}
    parameters = CallParameters(options=calls, timeout=PATIENCE, seconds=PATIENCE * options.dialogues)
    with ClientProcesses(targets, 1, run_stream) as clients:
        clients.run(
            [_planned(options.languages[0], options)[:1]], parameters, timeout=parameters.seconds
        )  # warms the server up
        for language in options.languages:
            planned = _planned(language, options)
            dialogues: list[Dialogue] = clients.run([planned], parameters, timeout=parameters.seconds)
            yield row(language, dialogues, options.turn, MAX_WAIT)


def _planned(language: str, options: argparse.Namespace) -> list[PlannedDialogue]:
    texts = load_language(language)[: options.dialogues]
    shape = {"sentences": options.sentences, "turn": options.turn, "pause": options.pause}
    return [PlannedDialogue(script(text, **shape), 0.0) for text in texts]


def flags() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    servers.add_flags(parser)
    parser.add_argument("--languages", type=words, default=SCRIPTS, help="languages, separated by commas")
    parser.add_argument("--dialogues", type=int, default=3, help="dialogues of each language")
    parser.add_argument("--sentences", type=int, default=6, help="sentences of a dialogue")
    parser.add_argument("--turn", type=int, default=2, help="sentences between two pauses")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds of a pause")
    parser.add_argument("--max-steps", type=int, default=12, help="most steps of a segment")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--seed", type=int, default=1, help="seed of the speech")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--page", type=Path, help="also write the table to this Markdown page")
    return parser


def main() -> None:
    parser = flags()
    options, extra = parser.parse_known_args()  # all others are the server's
    if unknown := sorted(set(options.languages) - set(LANGUAGES)):
        parser.error(f"--languages: there are no texts for {', '.join(unknown)}, only for {', '.join(LANGUAGES)}")
    rows: list[Row] = []
    print(COLUMNS)
    with servers.reached(options, extra) as targets:
        with Client(targets[0]) as client:
            about = _conditions(options, client.model_info().model)
        for one in measure(targets, options):
            rows.append(one)
            print("|".join(line(one)), flush=True)
    if options.json:
        write_json(options.json, about | {"rows": [asdict(one) for one in rows]})
    if options.page:
        options.page.write_text(render(about, rows))
    if failed := sum((Counter(one.codes) for one in rows), Counter()):
        raise SystemExit(f"calls failed: {dict(failed)}")


def _conditions(options: argparse.Namespace, model: str) -> dict[str, Any]:
    return {
        "command": command(),
        "run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions("torch", "grpcio", "sentencex"),
        "model": model,
        "max_wait_s": MAX_WAIT,
        "pause_s": options.pause,
        "sentences": options.sentences,
        "turn": options.turn,
        "options": {"max_steps": options.max_steps, "timesteps": options.timesteps, "seed": options.seed},
    }


if __name__ == "__main__":
    main()
