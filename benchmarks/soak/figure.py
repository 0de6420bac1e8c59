"""The pictures of a soak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from benchmarks.pages.figures import INK, frame, save


def draw(table: Mapping[str, Any], path: Path) -> None:
    """Plot the memory of each kind of process over the calls."""
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    samples = table["samples"]
    for kind in samples[-1]["mib"]:
        axis.plot(
            [sample["calls"] for sample in samples], [sample["mib"].get(kind) for sample in samples], "o-", label=kind
        )
    frame(axis, "calls", "resident memory, MiB")
    axis.legend(loc="center right")  # no process ends between the others
    save(figure, path)


def draw_deaths(streams: Sequence[Sequence[Any]], deaths: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the first audio of each stream over the time, with the deaths of engines.

    streams: those of `deaths.table_of`, as `points`
    """
    figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
    for label, continued in (("undisturbed", False), ("another engine went on", True)):
        points = [(began, first) for began, first, _, times in streams if bool(times) is continued]
        axis.plot([x for x, _ in points], [y for _, y in points], ".", ms=3, label=label)
    for death in deaths:
        axis.axvline(death["at"], color=INK["peer"], lw=0.8)
        where = {"transform": axis.get_xaxis_transform(), "va": "top"}
        axis.text(death["at"], 0.98, f" {death['way']}", **where, fontsize=8, color=INK["peer"])
    frame(axis, "seconds", "first audio, ms")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    save(figure, path)
