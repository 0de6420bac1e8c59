"""Compare streams in a batch with the same streams alone.

    python -m benchmarks.batching [--model demo] [--device cpu] [--streams 8] [--sentences 32] [--json FILE]

Each sentence is spoken once alone and once beside others, at most --streams at a time, with a seed of its own, by the
model's choice of a voice for each style. The table gives the largest difference of the audio of a sentence, from -1 to
1. Matrix products of other row counts add in another order, which changes values by about 1e-7. The quantizer between
the two language models rounds, and where a value lies that near to a rounding boundary, the two runs round to
different steps: such a sentence differs by more than the promised 1e-4.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import voxcpm_grpc
from benchmarks.measuring.environment import ROOT, command, versions
from benchmarks.measuring.flags import command_parser, words
from voxcpm_grpc.request import Sampling

if TYPE_CHECKING:
    from voxcpm_grpc import AsyncModel

PROMISED = 1e-4
SENTENCES = ROOT / "tools" / "voice" / "held_out.txt"
STYLES = "a woman's voice,a man's voice,a British man's voice"


@dataclass(frozen=True, slots=True)
class Row:
    """A sentence, and the difference of its two runs."""

    text: str
    style: str
    seconds: float
    difference: float | None  # the largest of all samples; None: the lengths differ


async def speak(model: AsyncModel, text: str, style: str, seed: int) -> np.ndarray:
    """The audio of a sentence, float32 [samples]."""
    return np.concatenate([part async for part in model.generate(text, style=style, sampling=Sampling(seed=seed))])


async def compare(model: AsyncModel, texts: list[str], style: str, streams: int) -> list[Row]:
    """Speak the texts alone, one after another, and then `streams` at a time."""
    alone = [await speak(model, text, style, seed) for seed, text in enumerate(texts)]
    running = asyncio.Semaphore(streams)

    async def beside(seed: int, text: str) -> np.ndarray:
        async with running:
            return await speak(model, text, style, seed)

    batched = await asyncio.gather(*(beside(seed, text) for seed, text in enumerate(texts)))
    rate = model.info.output_sample_rate
    return [
        Row(text, style, len(a) / rate, float(np.abs(a - b).max()) if len(a) == len(b) else None)
        for text, a, b in zip(texts, alone, batched, strict=True)
    ]


async def measure(model: str, device: str, texts: list[str], styles: list[str], streams: int) -> list[Row]:
    settings = {"engine.max_slots": streams, "engine.dtype": "float32"}
    async with await voxcpm_grpc.load_async(model, devices=[device], settings=settings) as loaded:
        return [row for style in styles for row in await compare(loaded, texts, style, streams)]


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--streams", type=int, default=8, help="streams at a time in the second run")
    parser.add_argument(
        "--sentences", type=int, default=32, help="the first of tools/voice/held_out.txt, for each style"
    )
    parser.add_argument("--styles", type=words, default=words(STYLES))
    parser.add_argument("--json", type=Path, help="file for the rows")
    args = parser.parse_args()
    texts = SENTENCES.read_text("utf-8").splitlines()[: args.sentences]
    rows = asyncio.run(measure(args.model, args.device, texts, args.styles, args.streams))
    print("| style | sentences | beyond 1e-4 | of other length | largest difference | median |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for style in args.styles:
        found = [row.difference for row in rows if row.style == style]
        same = [d for d in found if d is not None]
        beyond = sum(d > PROMISED for d in same)
        cells = (style, len(found), beyond, len(found) - len(same), f"{max(same):.1e}", f"{np.median(same):.1e}")
        print("|", " | ".join(map(str, cells)), "|")
    if args.json:
        report = {"command": command(), "versions": versions("torch", "numpy"), "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
