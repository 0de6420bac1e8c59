"""Compare the sentence ends that a rule finds while text arrives with marks that were set by hand.

    python -m benchmarks.segmentation --page segmentation.md --json segmentation.json
    python -m benchmarks.segmentation --file development --errors

Each text is fed code point by code point. Precision is the share of cuts that are at a required or acceptable sentence
end. Recall is the share of required ends that are cut before the text ends. Lateness is the number of code points from
the last visible character of a sentence to the one with which the rule returns its segment.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser
from benchmarks.pages.files import write_json
from benchmarks.segmentation.corpus import FILES, load
from benchmarks.segmentation.page import errors, render, scores, table
from benchmarks.segmentation.rules import RULES
from benchmarks.segmentation.scoring import trial


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--file", choices=FILES, default="held_out", help="texts; development is for tuning the rules")
    parser.add_argument("--errors", action="store_true", help="print every wrong and every missed cut")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--page", type=Path, help="also write the table to this Markdown page")
    options = parser.parse_args()

    texts = load(options.file)
    trials = {name: [trial(text, make) for text in texts] for name, make in RULES.items()}
    found = {name: scores(of_rule) for name, of_rule in trials.items()}
    if options.errors:
        for name, of_rule in trials.items():
            print("\n".join(line for one in of_rule for line in errors(name, one)))
    print(table(found))

    packages = versions("sentencex")
    conditions = {"command": command(), "file": options.file}
    if options.json:
        rules = {name: {language: asdict(row) for language, row in rows.items()} for name, rows in found.items()}
        content = {**conditions, "versions": packages, "rules": rules}
        write_json(options.json, content)
    if options.page:
        options.page.write_text(render(conditions, found, packages))


if __name__ == "__main__":
    main()
