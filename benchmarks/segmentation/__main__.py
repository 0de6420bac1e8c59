"""Compare the sentence ends that a rule finds while text arrives with marks that were set by hand.

    python -m benchmarks.segmentation --page segmentation-languages.md --json segmentation-languages.json
    python -m benchmarks.segmentation --languages th,lo --errors
    python -m benchmarks.segmentation --file held_out --page segmentation.md --json segmentation.json

Precision is the share of cuts that are at a required or acceptable sentence end. Recall is the share of required ends
that are cut before the text ends.

Without --file, the texts of each language arrive word by word in virtual time, with pauses. The tables have the scores
of the server's rule, and the seconds for which it holds sentences back. With --file, the texts are fed code point by
code point, and the table compares rules. Lateness is then the number of code points from the last visible character of
a sentence to the one with which the rule returns its segment.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser, words
from benchmarks.pages.files import write_json
from benchmarks.segmentation import by_language
from benchmarks.segmentation.corpus import FILES, LANGUAGES, load, load_language
from benchmarks.segmentation.page import errors, render, scores, table
from benchmarks.segmentation.rules import RULES
from benchmarks.segmentation.scoring import trial


def main() -> None:
    parser = command_parser(__doc__)
    texts = parser.add_mutually_exclusive_group()
    texts.add_argument("--file", choices=FILES, help="compare rules; development is for tuning them")
    texts.add_argument(
        "--languages", type=words, default=LANGUAGES, help="languages, separated by commas; all by default"
    )
    parser.add_argument("--errors", action="store_true", help="print every wrong and every missed cut")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--page", type=Path, help="also write the table to this Markdown page")
    options = parser.parse_args()
    if unknown := sorted(set(options.languages) - set(LANGUAGES)):
        parser.error(f"--languages: there are no texts for {', '.join(unknown)}, only for {', '.join(LANGUAGES)}")

    packages = versions("sentencex")
    rows, page = compare_rules(options, packages) if options.file else languages(options, packages)
    if options.json:
        write_json(options.json, {"command": command(), "versions": packages, **rows})
    if options.page:
        options.page.write_text(page)


def compare_rules(options: argparse.Namespace, packages: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """The rows and the page of all rules on one of FILES."""
    texts = load(options.file)
    trials = {name: [trial(text, make) for text in texts] for name, make in RULES.items()}
    found = {name: scores(of_rule) for name, of_rule in trials.items()}
    if options.errors:
        for name, of_rule in trials.items():
            print("\n".join(line for one in of_rule for line in errors(name, one)))
    print(table(found))
    rules = {name: {language: asdict(row) for language, row in rows.items()} for name, rows in found.items()}
    conditions = {"command": command(), "file": options.file}
    return {"file": options.file, "rules": rules}, render(conditions, found, packages)


def languages(options: argparse.Namespace, packages: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """The rows and the page of the server's rule on the texts of each language."""
    texts = {language: load_language(language) for language in options.languages}
    if options.errors:
        arrivals = (one for of_language in texts.values() for one in by_language.streams(of_language))
        print("\n".join(line for one in arrivals for line in errors("segmenter", one.trial)))
    found = {language: by_language.language_row(of_language) for language, of_language in texts.items()}
    print(by_language.ends_table(found), by_language.delays_table(found), sep="\n\n")
    rows = {language: row.content() for language, row in found.items()}
    return {"languages": rows}, by_language.render(command(), found, packages)


if __name__ == "__main__":
    main()
