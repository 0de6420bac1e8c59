"""Evaluate a served model: naturalness, word errors, the right speaker, and the right length.

    python -m tools.voice.ceiling HELD_OUT CODEC RECORDINGS
    python -m tools.voice.evaluate HELD_OUT RECORDINGS --model DIR --out benchmarks/results/voice

It records into RECORDINGS the held-out sentences in every voice and mode, as a server speaks them: one that it starts
for --model, or a running --target. Recordings that exist are kept, so an interrupted run goes on where it stopped. It
compares them with the teacher's own in HELD_OUT, which tools.voice.speak made, and with the teacher's after the codec,
which are optional, and writes OUT.json and OUT.md. The exit status is 1 if a bound does not hold.
"""

import argparse
import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measuring import environment
from benchmarks.pages.markdown import grid, listed
from benchmarks.serving import servers
from tools.voice import judge, naturalness, recognition
from tools.voice.dataset import RATE, Speech
from tools.voice.record import MODES, cases, record_all
from tools.voice.recordings import CODEC, Case, recordings
from tools.voice.voices import VOICES
from voxcpm_client.values.options import SpeechOptions

TEACHER = "teacher"  # the mode of the teacher's own recordings
WORSE = 1.15  # bound on the word error rate, as a multiple of the teacher's
RATE_OF_DEFAULT = 0.06  # bound on the word error rate of the default voice
NATURAL, LOST = 3.7, 0.25  # bounds on P.808: least of the default voice, and most that a voice loses of its teacher's
LENGTHS = 0.95  # least share of cases with the right length
LENGTH = 0.15  # most difference of a right length from the teacher's, as a share

COLUMNS = (
    "mode|voice|naturalness|word errors|character errors|speaker by pitch|by timbre|confused|right length|length|capped"
)

Sound = Callable[[], np.ndarray]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The evaluation of one recording."""

    case: Case
    transcript: str
    words: judge.Errors
    characters: judge.Errors
    by_pitch: str  # name of the voice whose pitch is nearest
    by_timbre: str
    naturalness: float  # P.808, 1 to 5
    seconds: float  # from the first sound to the last
    capped: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One voice in one mode. Shares are of its recordings."""

    mode: str
    voice: str
    recordings: int
    naturalness: float  # mean
    word_error_rate: float
    character_error_rate: float
    right_by_pitch: float
    right_by_timbre: float
    confused: int  # with another speaker by both
    right_length: float
    median_length: float  # over the teacher's
    capped: int


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit on a measured value."""

    about: str
    measured: float
    limit: float
    holds: bool


_networks: list[naturalness.P808] = []  # of this process


def predicted(samples: np.ndarray) -> float:
    """The naturalness of a recording; 1 for silence. samples: int16 at judge.RATE."""
    if recognition.is_silent(samples):
        return 1.0
    if not _networks:
        _networks.append(naturalness.P808())
    return _networks[0](samples)


def verdict(sound: tuple[Case, np.ndarray, str], speakers: Mapping[str, judge.Speaker]) -> Verdict:
    case, samples, finish_reason = sound
    silent = recognition.is_silent(samples)
    transcript = recognition.transcript(samples)
    hertz = math.nan if silent else judge.pitch(samples)
    return Verdict(
        case,
        transcript,
        judge.word_errors(case.text, transcript),
        judge.character_errors(case.text, transcript),
        "" if math.isnan(hertz) else judge.nearest_by_pitch(hertz, speakers),
        "" if silent else judge.nearest_by_timbre(judge.timbre(samples), speakers),
        predicted(samples),
        recognition.seconds(samples),
        finish_reason != "complete",
    )


def row(mode: str, voice: str, verdicts: Sequence[Verdict], teacher: Mapping[tuple[str, str], Verdict]) -> Row:
    lengths = [one.seconds / teacher[voice, one.case.text].seconds for one in verdicts]
    words, characters = judge.Errors(0, 0), judge.Errors(0, 0)
    for one in verdicts:
        words, characters = words + one.words, characters + one.characters
    return Row(
        mode,
        voice,
        len(verdicts),
        float(np.mean([one.naturalness for one in verdicts])),
        words.rate,
        characters.rate,
        _share(one.by_pitch == voice for one in verdicts),
        _share(one.by_timbre == voice for one in verdicts),
        sum(voice not in (one.by_pitch, one.by_timbre) for one in verdicts),
        _share(abs(length - 1) <= LENGTH for length in lengths),
        median(lengths),
        sum(one.capped for one in verdicts),
    )


def bounds(rows: Sequence[Row]) -> list[Bound]:
    """The bounds: naturalness and words of each row, length over the voices of a mode, and the rest overall."""
    own = {one.voice: one for one in rows if one.mode == TEACHER}
    served = [one for one in rows if one.mode not in (TEACHER, CODEC)]
    found = []
    for one in served:
        of, teacher, default = f"of {one.voice}, {one.mode}", own[one.voice], one.voice == VOICES[0].name
        least = max(teacher.naturalness - LOST, NATURAL if default else 0)
        most = min(WORSE * teacher.word_error_rate, RATE_OF_DEFAULT if default else 1)
        found.append(Bound(f"naturalness {of}, at least", one.naturalness, least, one.naturalness >= least))
        found.append(Bound(f"word error rate {of}, at most", one.word_error_rate, most, one.word_error_rate <= most))
    for mode in dict.fromkeys(one.mode for one in served):
        share = _mean([one for one in served if one.mode == mode], lambda one: one.right_length)
        about = f"length within {LENGTH:.0%} of the teacher's, {mode}, at least"
        found.append(Bound(about, share, LENGTHS, share >= LENGTHS))
    for about, count in (
        ("recordings with a confused speaker, at most", sum(one.confused for one in served)),
        ("recordings that did not end by themselves, at most", sum(one.capped for one in served)),
    ):
        found.append(Bound(about, count, 0, not count))
    return found


def _share(right: Iterable[bool]) -> float:
    return float(np.mean(list(right)))


def _mean(rows: Sequence[Row], value: Callable[[Row], float]) -> float:
    return sum(value(one) * one.recordings for one in rows) / sum(one.recordings for one in rows)


def evaluate_all(
    teacher: Speech, folder: Path, modes: Sequence[str], processes: int = 1
) -> tuple[list[Row], list[Verdict]]:
    """Evaluate the teacher's recordings and those of `folder`. Raises ValueError if one is missing there."""
    texts = list(dict.fromkeys(entry.text for entry in teacher.entries))
    sounds = [
        (Case(TEACHER, one.voice, one.text), judge.heard(one.samples, RATE), "complete")
        for voice in VOICES
        for one in teacher
        if one.voice == voice.name
    ]
    speakers = {
        voice.name: judge.profile([samples for case, samples, _ in sounds if case.voice == voice.name])
        for voice in VOICES
    }
    there = {one.case: one for one in recordings(folder)}
    for case in cases(texts, modes):
        if case not in there:
            raise ValueError(f"{folder} has no recording of {case}; record it from a server")
        sounds.append((case, judge.heard(there[case].samples(), RATE), there[case].finish_reason))
    verdicts = list(recognition.evaluated(partial(verdict, speakers=speakers), sounds, processes))
    truth = {(one.case.voice, one.case.text): one for one in verdicts if one.case.mode == TEACHER}
    rows = []
    for mode in (TEACHER, *modes):
        for voice in VOICES:
            of_row = [one for one in verdicts if (one.case.mode, one.case.voice) == (mode, voice.name)]
            rows.append(row(mode, voice.name, of_row, truth))
    return rows, verdicts


def page(result: Mapping[str, Any]) -> str:
    """The result as Markdown."""
    held = all(bound["holds"] for bound in result["bounds"])
    described = ", ".join(f"{voice.name} is {voice.description}" for voice in VOICES)
    rows = [
        [
            one["mode"],
            one["voice"],
            f"{one['naturalness']:.2f}",
            f"{one['word_error_rate']:.1%}",
            f"{one['character_error_rate']:.1%}",
            f"{one['right_by_pitch']:.0%}",
            f"{one['right_by_timbre']:.0%}",
            str(one["confused"]),
            f"{one['right_length']:.0%}",
            f"{one['median_length']:.2f}",
            str(one["capped"]),
        ]
        for one in result["rows"]
    ]
    wanted = [
        [one["about"], f"{one['measured']:.3g}", f"{one['limit']:.3g}", "yes" if one["holds"] else "**no**"]
        for one in result["bounds"]
    ]
    return f"""# Evaluation of the bundled voice

A server spoke {result["rows"][0]["recordings"]} sentences that are not in the training data in every voice and mode,
and the teacher spoke them too. Naturalness is the P.808 score that DNSMOS predicts. Word errors are counted in the
transcripts of pocketsphinx. The speaker of a recording is the one with the nearest median pitch, or with the nearest
mean and deviation of the mel spectrum; a speaker is confused if both are another's. A length is the time from the first
sound to the last; the column gives the median of its ratio to the teacher's. Capped recordings were cut at the length
limit.

{grid(COLUMNS, rows)}

The mode is the way to give the speaker: `described` by the voice's description, `reference` and `prompt` by the
teacher's recording of another sentence, `hifi` by both. `codec` is the teacher's speech after a pass through the codec,
the best that a model with this codec can reach. The voice {described}. A right length is within {LENGTH:.0%}
of the teacher's.

{"All bounds hold." if held else "**Not all bounds hold.**"}

{grid("bound|measured|limit|holds", wanted)}

`{result["command"]}` on {listed(result["versions"])}.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path, help="folder of the teacher's recordings of the held-out sentences")
    parser.add_argument("recordings", type=Path, help="folder for the recordings of the server")
    servers.add_flags(parser)
    parser.add_argument(
        "--modes",
        default="codec,described,reference,prompt",
        help=f"modes, separated by commas, of {','.join((CODEC, *MODES))}",
    )
    parser.add_argument("--cfg-value", type=float, help="strength of the guidance; default: the server's")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--temperature", type=float, help="deviation of the flow's noise; default: the server's")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first sentence; each next one has the next")
    parser.add_argument("--processes", type=int, default=2, help="processes that evaluate")
    parser.add_argument("--out", type=Path, required=True, help="path of the files to write, without a suffix")
    options = parser.parse_args()
    modes = options.modes.split(",")
    teacher = Speech(options.teacher)
    texts = list(dict.fromkeys(entry.text for entry in teacher.entries))
    there = {one.case for one in recordings(options.recordings)}
    asked = [mode for mode in modes if mode != CODEC]
    if not there.issuperset(cases(texts, asked)):
        wanted = SpeechOptions(timesteps=options.timesteps)
        if options.cfg_value is not None:
            wanted["cfg_value"] = options.cfg_value
        if options.temperature is not None:
            wanted["temperature"] = options.temperature
        with servers.reached(options, ()) as targets:
            asyncio.run(record_all(targets[0], teacher, asked, options.recordings, options.seed, **wanted))
    rows, verdicts = evaluate_all(teacher, options.recordings, modes, options.processes)
    (options.recordings / "judged.json").write_text(json.dumps([asdict(one) for one in verdicts], indent=1))
    found = bounds(rows)
    result = {
        "command": environment.command(),
        "versions": environment.versions("pocketsphinx", "speechmos", "numpy"),
        "rows": [asdict(one) for one in rows],
        "bounds": [asdict(one) for one in found],
    }
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(page(result))
    print(page(result))
    return 0 if all(bound.holds for bound in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
