"""Measure how many word errors it costs to speak a sentence in two parts, cut at a comma.

    python -m tools.voice.clauses RECORDINGS --model demo --seeds 1,2 --out benchmarks/results/eager

A server (its own, of --model, or a running --target) speaks each sentence of clauses.txt in one voice in three modes
for each seed: whole (`sentence`), cut (`eager`), and cut without the first part as context of the second
(`independent`). The recordings go into RECORDINGS, unless they are there already; the server's segment events must show
that it cut each sentence of the last two modes at a clause, and those of the first nowhere. pocketsphinx judges all.
Writes OUT.json and OUT.md. Ends with status 1 if `eager` has more word errors than is allowed. Interrupted, it goes on
where it was.
"""

import argparse
import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import environment
from benchmarks.pages.markdown import grid, listed
from benchmarks.serving import servers
from tools.voice import hearing, judge
from tools.voice.ask import ask_missing
from tools.voice.recordings import Case, Recording, recordings
from tools.voice.text import words
from voxcpm_client.options import SpeechOptions

SENTENCES = Path(__file__).with_name("clauses.txt")
WHOLE, EAGER, INDEPENDENT = "sentence", "eager", "independent"
MODES: Mapping[str, SpeechOptions] = {
    WHOLE: {"first_segment": "sentence"},
    EAGER: {"first_segment": "eager", "continuity": "carry"},
    INDEPENDENT: {"first_segment": "eager", "continuity": "independent"},
}
ALLOWED = 0.02  # word errors of EAGER above those of WHOLE, as a share of the words
DRAWS = 10_000  # of the bootstrap
SEEDS_APART = 1_000  # sentences of one seed at most


@dataclass(frozen=True, slots=True)
class Heard:
    """One recording. `first` is the text of its first segment; `seconds` run from the first sound to the last."""

    mode: str
    seed: int
    text: str
    first: str
    heard: str
    words: judge.Errors
    characters: judge.Errors
    seconds: float
    capped: bool


@dataclass(frozen=True, slots=True)
class Row:
    """All recordings of a mode, of one seed or of `all`."""

    mode: str
    seed: str
    recordings: int
    words: int
    word_errors: int
    word_error_rate: float
    character_error_rate: float
    seconds: float
    capped: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Error rate of a mode less that of whole sentences, over all seeds, and its bootstrap interval of 95 %."""

    mode: str
    of: str
    difference: float
    low: float
    high: float


def speak_all(
    target: str, texts: Sequence[str], voice: str, seeds: Sequence[int], folder: Path, timesteps: int
) -> None:
    """Fill the folder of each seed below `folder` with what is missing there. Raises SpeechError."""
    for seed in seeds:

        def options(case: Case, seed: int = seed) -> SpeechOptions:
            number = seed * SEEDS_APART + texts.index(case.text)
            return SpeechOptions(voice=case.voice, seed=number, timesteps=timesteps) | MODES[case.mode]

        asyncio.run(ask_missing(target, cases(texts, voice), folder_of(folder, seed), options))


def cases(texts: Sequence[str], voice: str) -> list[Case]:
    """Every sentence in every mode."""
    return [Case(mode, voice, text) for text in texts for mode in MODES]


def folder_of(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"


def checked(folder: Path, wanted: Iterable[Case]) -> list[Recording]:
    """The recordings of these cases. Raises ValueError if one is missing, or was cut otherwise than its mode says."""
    there = {one.case: one for one in recordings(folder)}
    found = []
    for case in wanted:
        if case not in there:
            raise ValueError(f"{folder} has no recording of {case}; ask a server for it")
        reasons = [part.cut_reason for part in there[case].parts]
        if len(reasons) != 1 if case.mode == WHOLE else "clause" not in reasons:
            raise ValueError(f"the server did not speak {case} as it should; its segments ended at: {reasons}")
        found.append(there[case])
    return found


def heard(item: tuple[int, Recording]) -> Heard:
    """The verdict on a recording of a seed."""
    seed, recording = item
    text, samples = recording.case.text, recording.samples()
    transcript = hearing.transcript(samples)
    return Heard(
        recording.case.mode,
        seed,
        text,
        recording.parts[0].text,
        transcript,
        judge.word_errors(text, transcript),
        judge.character_errors(text, transcript),
        hearing.seconds(samples),
        recording.finish_reason != "complete",
    )


def rows(verdicts: Sequence[Heard]) -> list[Row]:
    """One for each mode and seed, and, of several seeds, one for all of a mode."""
    seeds = sorted({one.seed for one in verdicts})
    groups = [(str(seed), {seed}) for seed in seeds] + ([("all", set(seeds))] if len(seeds) > 1 else [])
    return [
        _row(mode, name, [one for one in verdicts if one.mode == mode and one.seed in group])
        for name, group in groups
        for mode in MODES
    ]


def _row(mode: str, seed: str, verdicts: Sequence[Heard]) -> Row:
    words, characters = judge.Errors(0, 0), judge.Errors(0, 0)
    for one in verdicts:
        words, characters = words + one.words, characters + one.characters
    seconds = sum(one.seconds for one in verdicts)
    capped = sum(one.capped for one in verdicts)
    return Row(mode, seed, len(verdicts), words.length, words.edits, words.rate, characters.rate, seconds, capped)


def difference(mode: str, of: str, verdicts: Sequence[Heard]) -> Difference:
    """Of `words` or `characters`. Sentences are drawn with all their seeds, for these are no independent sample."""
    texts = list(dict.fromkeys(one.text for one in verdicts))
    number = {text: index for index, text in enumerate(texts)}
    more, length = np.zeros(len(texts)), np.zeros(len(texts))
    for one in verdicts:
        errors: judge.Errors = getattr(one, of)
        if one.mode == mode:
            more[number[one.text]] += errors.edits
            length[number[one.text]] += errors.length
        elif one.mode == WHOLE:
            more[number[one.text]] -= errors.edits
    drawn = np.random.default_rng(1).integers(len(texts), size=(DRAWS, len(texts)))
    low, high = np.quantile(more[drawn].sum(1) / length[drawn].sum(1), [0.025, 0.975])
    return Difference(mode, of, float(more.sum() / length.sum()), float(low), float(high))


def page(result: Mapping[str, Any]) -> str:
    """The result as Markdown."""
    lines = [
        [
            one["mode"],
            one["seed"],
            str(one["recordings"]),
            f"{one['word_errors']} of {one['words']}",
            f"{one['word_error_rate']:.2%}",
            f"{one['character_error_rate']:.2%}",
            f"{one['seconds']:.0f} s",
            str(one["capped"]),
        ]
        for one in result["rows"]
    ]
    differences = [
        [one["mode"], one["of"], *(f"{100 * one[name]:+.2f}" for name in ("difference", "low", "high"))]
        for one in result["differences"]
    ]
    holds = "This holds." if result["holds"] else "**This does not hold.**"
    return f"""# Sentences cut at a clause, judged

{result["sentences"]} sentences in the voice {result["voice"]}, each spoken whole (`sentence`), cut at a comma
(`eager`), and cut without the first part as context of the second (`independent`), with the same seed. The segment
events show that the server cut all of the last two modes at a clause, and none of the first. On average the first part
has {result["first_words"]:.1f} of {result["sentence_words"]:.1f} words. Errors are counted in what
pocketsphinx hears; lengths run from the first sound to the last.

{grid("mode|seed|recordings|word errors|rate|character errors|length|capped", lines)}

Errors less those of whole sentences, in percentage points, with the 95 % interval of {DRAWS:,} bootstrap samples of
sentences:

{grid("mode|errors of|difference|from|to", differences)}

In mode `eager` there may be {100 * ALLOWED:.0f} points more word errors. {holds}

`{result["command"]}` on {listed(result["versions"])}.
"""


def results(verdicts: Sequence[Heard], voice: str) -> dict[str, Any]:
    """The content of OUT.json."""
    differences = [difference(mode, of, verdicts) for mode in (EAGER, INDEPENDENT) for of in ("words", "characters")]
    first = {one.text: one.first for one in verdicts if one.mode == EAGER}
    return {
        "command": environment.command(),
        "versions": environment.versions("torch", "pocketsphinx", "numpy"),
        "voice": voice,
        "sentences": len(first),
        "sentence_words": float(np.mean([len(words(text)) for text in first])),
        "first_words": float(np.mean([len(words(text)) for text in first.values()])),
        "rows": [asdict(one) for one in rows(verdicts)],
        "differences": [asdict(one) for one in differences],
        "allowed": ALLOWED,
        "holds": differences[0].difference <= ALLOWED,
        "heard": [asdict(one) for one in verdicts],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, help="folder for what the server says")
    servers.add_flags(parser)
    parser.add_argument("--voice", default="rms", help="a preset or an id; default: rms, the bundled voice's first")
    parser.add_argument("--seeds", type=_numbers, default=[1], help="separated by commas")
    parser.add_argument("--sentences", type=Path, default=SENTENCES, help="one a line; default: clauses.txt")
    parser.add_argument("--timesteps", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2, help="that judge")
    parser.add_argument("--out", type=Path, required=True, help="path without a suffix")
    options = parser.parse_args()
    texts = options.sentences.read_text(encoding="utf-8").splitlines()
    wanted = cases(texts, options.voice)
    folders = {seed: folder_of(options.recordings, seed) for seed in options.seeds}
    if any(not {one.case for one in recordings(folder)}.issuperset(wanted) for folder in folders.values()):
        with servers.reached(options, ()) as targets:
            speak_all(targets[0], texts, options.voice, options.seeds, options.recordings, options.timesteps)
    items = [(seed, one) for seed, folder in folders.items() for one in checked(folder, wanted)]
    result = results(list(hearing.judged(heard, items, options.processes)), options.voice)
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(page(result))
    print(page(result))
    return 0 if result["holds"] else 1


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    raise SystemExit(main())
