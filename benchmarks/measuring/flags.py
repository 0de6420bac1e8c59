"""Command lines of the benchmarks: the parser, and types of flags."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.measuring.environment import module


def command_parser(description: str | None) -> argparse.ArgumentParser:
    """The parser of the module that runs. description: its docstring, which the help shows as it is."""
    return argparse.ArgumentParser(
        prog=f"python -m {module()}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def integers(text: str) -> list[int]:
    """Integers that are separated by commas."""
    return [int(part) for part in text.split(",")]


def floats(text: str) -> list[float]:
    """Numbers that are separated by commas; an empty text is an empty list."""
    return [float(part) for part in text.split(",") if part]


def words(text: str) -> list[str]:
    """Words that are separated by commas."""
    return text.split(",")


def add_output_flags(parser: argparse.ArgumentParser, *, name: str = "here") -> None:
    """Add the flags of a command that writes a page. name: default of `--name`."""
    parser.add_argument("--name", default=name, help="name of the files to write")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the files to write")
