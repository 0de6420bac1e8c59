"""Compare two checkouts by one benchmark, which runs in both in turns.

    python -m benchmarks.paired ../base -- engine --model demo --streams 1,8
    python -m benchmarks.paired ../base --runs 5 --columns step_p50_ms --limit 1.02 -- engine --model DIR --streams 64

A pair is a run in the base and a run in this checkout; every second pair begins with the other one. What else the host
does then meets both, and a ratio is the median of those of the pairs: this checkout divided by the base. With `--limit`
the command fails if a ratio is larger.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring.flags import command_parser, words

ROOT = Path(__file__).parents[1]
PACKAGES = (".", "server", "clients/python")  # folders of packages in a checkout
Values = Mapping[tuple[str, str], float]  # a number by its row and its column


@dataclass(frozen=True, slots=True)
class Comparison:
    """A number of a table in both checkouts: medians of the runs, and the ratios of the pairs."""

    row: str
    column: str
    base: float
    here: float
    ratios: Sequence[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    def __str__(self) -> str:
        spread = f"{min(self.ratios):.3f} to {max(self.ratios):.3f}"
        return f"{self.row:24} {self.column:24} {self.base:11.4g} {self.here:11.4g} {self.ratio:7.3f}   {spread}"


def run(checkout: Path, benchmark: str, arguments: Sequence[str]) -> Values:
    """The numbers of a run of `benchmarks.<benchmark>` in a checkout. Raises SystemExit if it fails."""
    paths = [str((checkout / package).resolve()) for package in PACKAGES]
    paths += filter(None, [os.environ.get("PYTHONPATH")])  # packages that are not installed
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", f"benchmarks.{benchmark}"]
        shown = subprocess.run([*command, "--help"], cwd=checkout, env=environment, capture_output=True, text=True)
        flags = ["--json", f"{folder}/run.json"] if "--json " in shown.stdout else ["--out", folder, "--name", "run"]
        done = subprocess.run([*command, *arguments, *flags], cwd=checkout, env=environment, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(f"benchmarks.{benchmark} ended with {done.returncode} in {checkout}")
        [table] = Path(folder).glob("*.json")
        return numbers(json.loads(table.read_text("utf-8"))["rows"])


def numbers(rows: Sequence[Mapping[str, object]]) -> Values:
    """The numbers of a table, without those of value 0. A row is named by its texts and its first number."""
    found: dict[tuple[str, str], float] = {}
    for row in rows:
        texts = [value for value in row.values() if isinstance(value, str)]
        counted = {name: value for name, value in row.items() if isinstance(value, int | float) and value}
        first = next(iter(counted.items()), ("", 0))
        name = " ".join([*texts, f"{first[0]}={first[1]:g}"])
        found |= {(name, column): float(value) for column, value in counted.items() if column != first[0]}
    return found


def compare(pairs: Sequence[tuple[Values, Values]], columns: Sequence[str] = ()) -> list[Comparison]:
    """The numbers that all runs have, of these columns or of all. pairs: the base, and this checkout."""
    common = [key for key in pairs[0][0] if all(key in values for pair in pairs for values in pair)]
    return [
        Comparison(
            row=row,
            column=column,
            base=statistics.median(base[row, column] for base, _ in pairs),
            here=statistics.median(here[row, column] for _, here in pairs),
            ratios=[here[row, column] / base[row, column] for base, here in pairs],
        )
        for row, column in common
        if not columns or column in columns
    ]


def parsed() -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument("base", type=Path, help="the other checkout")
    parser.add_argument("--runs", type=int, default=3, help="pairs of runs")
    parser.add_argument("--columns", type=words, default=[], help="only these columns of the table")
    parser.add_argument("--limit", type=float, help="fail if a ratio is larger")
    parser.add_argument("benchmark", help="its name and its flags, behind --")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    pairs: list[tuple[Values, Values]] = []
    for pair in range(options.runs):
        order = (options.base, ROOT) if pair % 2 == 0 else (ROOT, options.base)
        values = {checkout: run(checkout, options.benchmark, options.arguments) for checkout in order}
        pairs.append((values[options.base], values[ROOT]))
        print(f"pair {pair + 1} of {options.runs}", file=sys.stderr, flush=True)
    found = compare(pairs, options.columns)
    print(f"{'row':24} {'column':24} {'base':>11} {'here':>11} {'ratio':>7}   pairs")
    print("\n".join(map(str, found)))
    if options.limit is not None and (late := [one for one in found if one.ratio > options.limit]):
        raise SystemExit(f"{len(late)} of {len(found)} ratios are above {options.limit:g}")


if __name__ == "__main__":
    main()
