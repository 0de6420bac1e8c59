"""Measure the word errors that a sentence has more if it is spoken in two parts, cut at a comma.

    python -m tools.voice.clauses RECORDINGS --model demo --seeds 1,2 --out benchmarks/results/eager

A server speaks each sentence of clauses.txt in one voice, for each seed in three modes: whole (`sentence`), cut
(`eager`), and cut without the first part as context of the second (`independent`). The server is one that is started
for --model, or a running --target. The server's segment events must show that it cut each sentence of the last two
modes at a clause, and none of the first. Errors are counted in the transcripts of pocketsphinx. The command writes
OUT.json and OUT.md. The exit status is 1 if `eager` has more word errors than are allowed. Recordings in RECORDINGS are
kept, so an interrupted run goes on where it stopped.
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
from benchmarks.measuring.flags import integers
from benchmarks.pages.markdown import grid, listed
from benchmarks.serving import servers
from tools.voice import judge, recognition
from tools.voice.dataset import RATE
from tools.voice.record import record_missing
from tools.voice.recordings import Case, Recording, recordings
from tools.voice.text import words
from tools.voice.voices import VOICES
from voxcpm_client.values.options import SpeechOptions

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
class Verdict:
    """The evaluation of one recording. first: text of its first segment. seconds: from the first sound to the last."""

    mode: str
    seed: int
    text: str
    first: str
    transcript: str
    words: judge.Errors
    characters: judge.Errors
    seconds: float
    capped: bool


@dataclass(frozen=True, slots=True)
class Row:
    """All recordings of a mode, of one seed or of "all"."""

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
    """The error rate of a mode minus that of whole sentences, over all seeds, with its 95 % bootstrap interval."""

    mode: str
    of: str
    difference: float
    low: float
    high: float


def speak_all(
    target: str, texts: Sequence[str], voice: str, seeds: Sequence[int], folder: Path, timesteps: int
) -> None:
    """Record the cases that the folder of each seed below `folder` does not hold yet. Raises SpeechError."""
    for seed in seeds:

        def options(case: Case, seed: int = seed) -> SpeechOptions:
            number = seed * SEEDS_APART + texts.index(case.text)
            return SpeechOptions(voice=case.voice, seed=number, timesteps=timesteps) | MODES[case.mode]

        asyncio.run(record_missing(target, cases(texts, voice), folder_of(folder, seed), options))


def cases(texts: Sequence[str], voice: str) -> list[Case]:
    """The cases: every sentence in every mode."""
    return [Case(mode, voice, text) for text in texts for mode in MODES]


def folder_of(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"


def checked(folder: Path, wanted: Iterable[Case]) -> list[Recording]:
    """The recordings of the cases. Raises ValueError if one is missing, or is not cut as its mode requires."""
    there = {one.case: one for one in recordings(folder)}
    found = []
    for case in wanted:
        if case not in there:
            raise ValueError(f"{folder} has no recording of {case}; record it from a server")
        reasons = [part.cut_reason for part in there[case].parts]
        if len(reasons) != 1 if case.mode == WHOLE else "clause" not in reasons:
            raise ValueError(f"the server did not cut {case} as its mode requires; its cuts have the reasons {reasons}")
        found.append(there[case])
    return found


def verdict(item: tuple[int, Recording]) -> Verdict:
    """The evaluation of a recording. item: its seed and the recording."""
    seed, recording = item
    text, samples = recording.case.text, judge.heard(recording.samples(), RATE)
    transcript = recognition.transcript(samples)
    return Verdict(
        recording.case.mode,
        seed,
        text,
        recording.parts[0].text,
        transcript,
        judge.word_errors(text, transcript),
        judge.character_errors(text, transcript),
        recognition.seconds(samples),
        recording.finish_reason != "complete",
    )


def rows(verdicts: Sequence[Verdict]) -> list[Row]:
    """The rows: one for each mode and seed, and with several seeds, one for all seeds of a mode."""
    seeds = sorted({one.seed for one in verdicts})
    groups = [(str(seed), {seed}) for seed in seeds] + ([("all", set(seeds))] if len(seeds) > 1 else [])
    return [
        _row(mode, name, [one for one in verdicts if one.mode == mode and one.seed in group])
        for name, group in groups
        for mode in MODES
    ]


def _row(mode: str, seed: str, verdicts: Sequence[Verdict]) -> Row:
    words, characters = judge.Errors(0, 0), judge.Errors(0, 0)
    for one in verdicts:
        words, characters = words + one.words, characters + one.characters
    seconds = sum(one.seconds for one in verdicts)
    capped = sum(one.capped for one in verdicts)
    return Row(mode, seed, len(verdicts), words.length, words.edits, words.rate, characters.rate, seconds, capped)


def difference(mode: str, of: str, verdicts: Sequence[Verdict]) -> Difference:
    """The difference in errors of `words` or `characters`.

    The bootstrap draws sentences with all their seeds, because the seeds of a sentence are not independent.
    """
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
    holds = "The bound holds." if result["holds"] else "**The bound does not hold.**"
    return f"""# Evaluation of sentences that are cut at a clause

A server spoke {result["sentences"]} sentences in the voice {result["voice"]}, each with the same seed in three modes:
whole (`sentence`), cut at a comma (`eager`), and cut without the first part as context of the second (`independent`).
The segment events show that the server cut every sentence of the last two modes at a clause, and none of the first.
On average the first part has {result["first_words"]:.1f} of {result["sentence_words"]:.1f} words. Errors are counted in
the transcripts of pocketsphinx. The length is the sum over recordings, each from the first sound to the last. Capped
recordings were cut at the length limit.

{grid("mode|seed|recordings|word errors|rate|character errors|length|capped", lines)}

The errors minus those of whole sentences, in percentage points, with the 95 % interval of {DRAWS:,} bootstrap samples
of sentences:

{grid("mode|errors of|difference|from|to", differences)}

The bound for `eager` is at most {100 * ALLOWED:.0f} points more word errors than whole sentences have. {holds}

`{result["command"]}` on {listed(result["versions"])}.
"""


def results(verdicts: Sequence[Verdict], voice: str) -> dict[str, Any]:
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
        "verdicts": [asdict(one) for one in verdicts],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, help="folder for the recordings of the server")
    servers.add_flags(parser)
    parser.add_argument("--voice", default=VOICES[0].name, help="name of a preset or id of a voice")
    parser.add_argument("--seeds", type=integers, default=[1], help="seeds, separated by commas")
    parser.add_argument("--sentences", type=Path, default=SENTENCES, help="file of sentences, one a line")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--processes", type=int, default=2, help="processes that evaluate")
    parser.add_argument("--out", type=Path, required=True, help="path of the files to write, without a suffix")
    options = parser.parse_args()
    texts = options.sentences.read_text(encoding="utf-8").splitlines()
    wanted = cases(texts, options.voice)
    folders = {seed: folder_of(options.recordings, seed) for seed in options.seeds}
    if any(not {one.case for one in recordings(folder)}.issuperset(wanted) for folder in folders.values()):
        with servers.reached(options, ()) as targets:
            speak_all(targets[0], texts, options.voice, options.seeds, options.recordings, options.timesteps)
    items = [(seed, one) for seed, folder in folders.items() for one in checked(folder, wanted)]
    result = results(list(recognition.evaluated(verdict, items, options.processes)), options.voice)
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(page(result))
    print(page(result))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
