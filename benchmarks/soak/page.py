"""The page of a soak."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import files
from benchmarks.pages.markdown import grid, listed
from benchmarks.pages.markdown import picture as markdown_picture
from benchmarks.soak.processes import Sample

NOTE = (
    "Each sample was taken 2 s after the last call of its part had ended. Memory is the resident memory of the "
    "processes in MiB, `other` that of the decode workers above all. The growth is the slope of a line through the "
    "samples of the second half."
)


def publish(table: Mapping[str, Any], folder: Path, name: str) -> None:
    """Write the files of a soak into `folder`."""
    files.publish(table, folder, name, render, _draw)


def _draw(table: Mapping[str, Any], path: Path) -> None:
    from benchmarks.soak import figure

    figure.draw(table, path)


def line(sample: Sample) -> str:
    """A sample for the terminal."""
    memory = ", ".join(f"{kind} {mib:.0f} MiB" for kind, mib in sample["mib"].items())
    return (
        f"{sample['seconds']:6.0f} s  {sample['calls']:5d} calls  {memory}, {sample['descriptors']} descriptors, "
        f"{sample['voices']} voices"
    )


def growth(samples: Sequence[Sample], kind: str) -> float:
    """The growth of memory in the second half, in MiB for 1,000 calls; NaN if no call ended in it."""
    half = samples[len(samples) // 2 :]
    calls = [sample["calls"] for sample in half]
    if calls[0] == calls[-1]:
        return math.nan
    return float(1000 * np.polyfit(calls, [sample["mib"].get(kind, 0.0) for sample in half], 1)[0])


def render(table: Mapping[str, Any], name: str, picture: str) -> str:
    """The page of one run."""
    versions = dict(table["versions"])
    device = versions.pop("device")
    samples: Sequence[Sample] = table["samples"]
    kinds = list(samples[-1]["mib"])
    lines = [
        [
            f"{sample['seconds']:.0f}",
            str(sample["calls"]),
            *(f"{sample['mib'].get(kind, 0.0):.0f}" for kind in kinds),
            str(sample["descriptors"]),
            str(sample["threads"]),
            str(sample["voices"]),
        ]
        for sample in samples
    ]
    last = samples[len(samples) // 2 :]
    changes = [
        [
            kind,
            f"{last[0]['mib'].get(kind, 0.0):.1f}",
            f"{last[-1]['mib'].get(kind, 0.0):.1f}",
            f"{growth(samples, kind):+.1f}",
        ]
        for kind in kinds
    ]
    sections = [
        f"# Soak: {device}\n\nThe numbers are in [{name}.json]({name}.json). {NOTE}",
        grid("seconds|calls|" + "|".join(kinds) + "|descriptors|threads|voices", lines),
        markdown_picture(picture),
        "## Second half\n\n" + grid("process|MiB at its start|at its end|growth for 1,000 calls", changes),
        "## Calls\n\n" + grid("call|number", [[call, str(number)] for call, number in table["calls"].items()]),
        f"```\n{table['command']}\n```",
        listed(versions),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"
