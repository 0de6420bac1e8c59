"""Measure when a listener hears the first sound of a stream, with the silence at its start and without it.

    python -m benchmarks.audible --model demo --json audible.json --page audible.md
    python -m benchmarks.audible --target HOST:PORT --voices hazel,miles

Each voice speaks 40 sentences whose first sounds differ, each with trim_leading_silence of 0 and with the server's
default, one after the other with the same seed. A listener plays audio as soon as it arrives, and hears a sound of -45
dBFS. A recognizer judges whether the words, and the first two of them, are still understood. The exit status is 1 if a
sample after the silence differs. A server that is started has no prefix cache, with which repeated requests differ by
rounding; a running one needs the same. Flags that are not listed here go to the server. Needs pocketsphinx.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.audible.calls import Spoken, speak
from benchmarks.audible.page import HEADS, line, render
from benchmarks.audible.rows import Onsets, Row, onsets, row
from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser
from benchmarks.pages.files import write_json
from benchmarks.serving import servers
from tools.voice.judge import Recognizer
from voxcpm_client import Client

SENTENCES = Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8").splitlines()
SAME_AUDIO = ("--engine.prefix-caching", "false")
MODES = {"whole": 0.0, "trimmed": None}  # None: the default of the server


def measure(client: Client, voices: Sequence[str], sentences: Sequence[str]) -> Iterator[tuple[list[Row], Onsets]]:
    """The rows of a voice, by MODES, and where its speech begins."""
    recognizer = Recognizer()
    for voice in voices:
        found: dict[str, list[Spoken]] = {mode: [] for mode in MODES}
        for seed, text in enumerate(sentences):
            for mode, trim in MODES.items():
                found[mode].append(speak(client, text, voice=voice, seed=seed, trim=trim))
        whole = found["whole"]
        rows = [row(voice, mode, calls, whole, recognizer) for mode, calls in found.items()]
        yield rows, onsets(voice, whole)


def main() -> None:
    parser = command_parser(__doc__)
    servers.add_flags(parser)
    parser.add_argument("--voices", help="presets, separated by commas; default: those of the model")
    parser.add_argument("--sentences", type=int, default=len(SENTENCES), help="number of sentences")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps of the server that is started")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--page", type=Path, help="also write the table to this Markdown page")
    options, extra = parser.parse_known_args()  # all others are the server's
    if not options.target:
        extra = [*SAME_AUDIO, *extra]
    with servers.reached(options, extra) as targets, Client(targets[0]) as client:
        info = client.model_info()
        table: dict[str, Any] = {
            "command": command(),
            "run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "versions": versions("torch", "grpcio", "pocketsphinx"),
            "model": info.model,
            "step_ms": 1e3 * info.samples_per_step / info.output_sample_rate,
            "sentences": options.sentences,
            "rows": [],
            "onsets": [],
        }
        speak(client, SENTENCES[0], voice=info.presets[0], seed=0, trim=None)  # loads what the first call loads
        print(HEADS)
        voices = options.voices.split(",") if options.voices else info.presets
        for rows, opening in measure(client, voices, SENTENCES[: options.sentences]):
            table["rows"] += map(asdict, rows)
            table["onsets"].append(asdict(opening))
            print("\n".join("|".join(line(asdict(one))) for one in rows), flush=True)
    if options.json:
        write_json(options.json, table)
    if options.page:
        options.page.write_text(render(table))
    if wrong := sum(one["different"] for one in table["rows"]):
        raise SystemExit(f"{wrong} streams differ after their silence")


if __name__ == "__main__":
    main()
