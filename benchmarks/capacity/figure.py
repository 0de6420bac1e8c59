"""The picture of a server's capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from benchmarks.pages.figures import INK, frame, save


def draw(table: Mapping[str, Any], path: Path) -> None:
    """Plot the time until the first sound of each trial over its listeners, and the bounds."""
    figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    plot_trials(axis, table["trials"], [one["ttfb_ms"] for one in table["capacities"]])
    save(figure, path)


def plot_trials(axis: Any, trials: Sequence[Mapping[str, Any]], bounds: Sequence[float]) -> None:
    """Plot trials into an axis. `bounds` are times until the first sound in ms."""
    levels = [row["level"] for row in trials]
    for name in ("p50", "p99"):
        axis.plot(levels, [row[f"audible_{name}_ms"] for row in trials], "o-", color=INK[name], label=name)
    faulty = [row for row in trials if row["late_streams"] or row["refused"] or row["failed"]]
    if faulty:
        values = [row["audible_p99_ms"] for row in faulty]
        axis.plot([row["level"] for row in faulty], values, "kx", markersize=9, label="late, refused or failed")
    for bound in bounds:
        axis.axhline(bound, linestyle="--", color=INK["floor"], linewidth=1)
    frame(axis, "listeners in real time", "time until the first sound, ms")
    axis.set_ylim(0, 3 * max(bounds))
