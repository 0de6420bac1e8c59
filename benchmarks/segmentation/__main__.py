"""Sentence ends that a rule finds while text still arrives, compared with marks set by hand.

    python -m benchmarks.segmentation --page segmentation.md --json segmentation.json
    python -m benchmarks.segmentation --file development --errors

Every text is fed code point by code point. Precision is the share of cuts that stand at a required or acceptable end;
recall is the share of required ends that are cut before the text ends; lateness counts the code points that had to
arrive after a sentence's last visible character before its segment came out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.hardware import command, versions
from benchmarks.markdown import grid, listed
from benchmarks.segmentation.corpus import FILES, load
from benchmarks.segmentation.rules import RULES
from benchmarks.segmentation.scoring import Score, Trial, score, trial

CONTEXT = 25  # code points on each side of an error
COLUMNS = ("precision", "recall", "late p50", "late p90")
Scores = Mapping[str, Mapping[str, Score]]  # by rule and language


def scores(trials: Sequence[Trial]) -> dict[str, Score]:
    """By language, in the order of the file, and under "all"."""
    languages = dict.fromkeys(one.text.language for one in trials)
    found = {language: score([one for one in trials if one.text.language == language]) for language in languages}
    return found | {"all": score(trials)}


def table(found: Scores) -> str:
    """A row per language, and of each rule its columns."""
    heads = ["language", "sentences", "ends", *(f"{rule}: {column}" for rule in found for column in COLUMNS)]
    first = next(iter(found.values()))
    lines = [
        [
            language,
            str(row.sentences),
            str(row.ends),
            *(cell for rule in found.values() for cell in cells(rule[language])),
        ]
        for language, row in first.items()
    ]
    return grid("|".join(heads), lines)


def cells(row: Score) -> list[str]:
    shares = ["-" if share is None else f"{share:.3f}" for share in (row.precision, row.recall)]
    return shares + ["-" if late is None else f"{late:g}" for late in (row.late_p50, row.late_p90)]


def errors(rule: str, one: Trial) -> list[str]:
    """A line for each wrong and missed cut, with its context."""
    kinds = dict.fromkeys(one.wrong, "wrong") | dict.fromkeys(one.missed, "missed")
    text = one.text.text
    return [
        f"{rule} {kinds[at]} {one.text.language}, {one.text.kind}: "
        + f"{text[max(0, at - CONTEXT) : at]}⟂{text[at : at + CONTEXT]}".replace("\n", "↵")
        for at in sorted(kinds)
    ]


def page(conditions: Mapping[str, object], found: Scores, packages: Mapping[str, str]) -> str:
    return f"""# Sentence ends while text arrives

`{conditions["command"]}` on the texts of `{conditions["file"]}.txt`, fed code point by code point.

{table(found)}

Precision: cuts at a required or acceptable end, of all cuts. Recall: required ends that are cut before the text ends,
of all required ends. Late: code points fed after the last visible character of a sentence before its segment comes
out, over the required ends that are cut. `segmenter` is the server's rule; `lookahead` takes a sentence of `sentencex`
(English rules) when two more have begun behind it, or one if it ends with a CJK terminator.

{listed(packages)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", choices=FILES, default="held_out", help="development is for tuning")
    parser.add_argument("--errors", action="store_true", help="print every wrong and every missed cut")
    parser.add_argument("--json", type=Path, help="file to write the table to")
    parser.add_argument("--page", type=Path, help="Markdown file to write the table to")
    options = parser.parse_args()

    texts = load(options.file)
    trials = {name: [trial(text, make) for text in texts] for name, make in RULES.items()}
    found = {name: scores(of_rule) for name, of_rule in trials.items()}
    if options.errors:
        for name, of_rule in trials.items():
            print("\n".join(line for one in of_rule for line in errors(name, one)))
    print(table(found))

    packages = versions("sentencex")
    conditions = {"command": command().replace(".__main__", ""), "file": options.file}
    if options.json:
        rules = {name: {language: asdict(row) for language, row in rows.items()} for name, rows in found.items()}
        content = {**conditions, "versions": packages, "rules": rules}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.page:
        options.page.write_text(page(conditions, found, packages))


if __name__ == "__main__":
    main()
