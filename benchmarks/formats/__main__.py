"""Compare the encoded streams of a server with PCM: decoded length, distance of the signal, delay of the first bytes.

    python -m benchmarks.formats --json formats.json --page formats.md
    python -m benchmarks.formats --target HOST:PORT --formats mp3:24000,flac:48000

Each row is an encoding at a rate, in one of three ways: both sentences in one turn (plain), the first one cut off by an
interrupt (interrupted), or a flush that ends a turn between them (resumed). The exit status is 1 if a decoded stream
does not have the length that its header and summary state. Flags that are not listed here go to the server.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.formats.calls import MODES, Stream, stream
from benchmarks.formats.compared import distance_db, signal
from benchmarks.formats.page import HEADS, line, render
from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser
from benchmarks.pages.files import write_json
from benchmarks.serving import servers
from voxcpm_client import Client
from voxcpm_grpc.audio import AudioFormat, Encoding

USUAL_RATES = {
    Encoding.PCM_S16LE: (8000, 16000, 22050, 24000, 44100, 48000),
    Encoding.PCM_F32LE: (16000, 24000, 48000),
    Encoding.WAV: (8000, 16000, 22050, 24000, 44100, 48000),
    Encoding.MULAW: (8000, 16000),
    Encoding.ALAW: (8000, 16000),
    Encoding.MP3: (8000, 16000, 22050, 24000, 44100, 48000),
    Encoding.OGG_OPUS: (8000, 12000, 16000, 24000, 48000),
    Encoding.FLAC: (8000, 16000, 22050, 24000, 44100, 48000),
}


def formats(text: str) -> list[AudioFormat]:
    """Formats as ENCODING:RATE, separated by commas."""
    pairs = [part.split(":") for part in text.split(",")]
    return [AudioFormat(Encoding(encoding), int(rate)) for encoding, rate in pairs]


def measure(client: Client, chosen: Sequence[AudioFormat], options: dict[str, Any], repeats: int) -> Iterator[dict]:
    """Yield the rows. options: of every call. repeats: calls of each format whose first bytes are timed."""
    references: dict[tuple[int, str], tuple[Stream, Any]] = {}
    first_pcm: dict[int, float] = {}
    stream(client, chosen[0], "plain", options)  # loads what the first call loads
    for format in chosen:
        rate = format.sample_rate
        pcm = AudioFormat(Encoding.PCM_S16LE, rate)
        for mode in MODES:
            whole = "resumed" if mode == "interrupted" else mode
            if (rate, whole) not in references:
                reference = stream(client, AudioFormat(Encoding.PCM_F32LE, rate), whole, options)
                references[rate, whole] = reference, signal(reference, AudioFormat(Encoding.PCM_F32LE, rate))[0]
                if mode == "plain":
                    first_pcm[rate] = _first_bytes(stream(client, pcm, mode, options) for _ in range(repeats))
            reference, wanted = references[rate, whole]
            calls = [stream(client, format, mode, options) for _ in range(repeats if mode == "plain" else 1)]
            samples, length_error = signal(calls[0], format)
            first = _first_bytes(calls)
            yield {
                "encoding": str(format.encoding),
                "rate": rate,
                "mode": mode,
                "samples": calls[0].total,
                "delay": calls[0].delay,
                "padding": calls[0].padding,
                "length_error": length_error,
                "distance_db": distance_db(calls[0], samples, reference, wanted, rate),
                "bitrate": len(calls[0].data) * 8 * rate / calls[0].total,
                "first_ms": first if mode == "plain" else None,
                "beside_pcm_ms": first - first_pcm[rate] if mode == "plain" else None,
            }


def _first_bytes(calls: Iterable[Stream]) -> float:
    """The median time to the first bytes of audio, in ms."""
    return 1e3 * statistics.median(call.first_audio for call in calls)


def flags() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    servers.add_flags(parser)
    every = [AudioFormat(encoding, rate) for encoding, rates in USUAL_RATES.items() for rate in rates]
    parser.add_argument("--formats", type=formats, default=every, help="ENCODING:RATE, separated by commas")
    parser.add_argument("--repeats", type=int, default=5, help="calls of each format whose first bytes are timed")
    parser.add_argument("--voice", help="name of a preset or id of a voice; default: none")
    parser.add_argument("--max-steps", type=int, help="most steps of a segment")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--page", type=Path, help="also write the table to this Markdown page")
    return parser


def main() -> None:
    options, extra = flags().parse_known_args()  # all others are the server's
    shared = {"seed": 1, "timesteps": options.timesteps, "voice": options.voice, "max_steps": options.max_steps}
    shared = {name: value for name, value in shared.items() if value is not None}
    with servers.reached(options, extra) as targets, Client(targets[0]) as client:
        info = client.model_info()
        table: dict[str, Any] = {
            "command": command(),
            "run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "versions": versions("av", "torch", "grpcio"),
            "model": info.model,
            "step_ms": 1e3 * info.samples_per_step / info.output_sample_rate,
            "repeats": options.repeats,
            "rows": [],
        }
        print(HEADS)
        for row in measure(client, options.formats, shared, options.repeats):
            table["rows"].append(row)
            print("|".join(line(row)), flush=True)
    if options.json:
        write_json(options.json, table)
    if options.page:
        options.page.write_text(render(table))
    if wrong := [row for row in table["rows"] if row["length_error"]]:
        raise SystemExit(f"{len(wrong)} streams do not have their stated length")


if __name__ == "__main__":
    main()
