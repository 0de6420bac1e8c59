"""The picture of `benchmarks.scaling`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from benchmarks.capacity.figure import plot_trials
from benchmarks.pages.figures import INK, frame, save


def draw(table: Mapping[str, Any], path: Path) -> None:
    """Plot audio per second and time to first audio over devices, and the trials if listeners were searched for."""
    rows, each = table["rows"], table["capacities"]
    figure, axes = plt.subplots(1, 2 + len(each), figsize=(5 * (2 + len(each)), 4), layout="constrained")
    most = max(row["device_count"] for row in rows)
    first = min(rows, key=lambda row: row["device_count"])
    one = first["load"]["audio_s_per_s"] / first["device_count"] / first["efficiency"]
    axes[0].plot([0, most], [0, most * one], "--", color=INK["floor"], label="in proportion")
    for fronts in sorted({row["fronts"] for row in rows}):
        those = [row for row in rows if row["fronts"] == fronts]
        counts = [row["device_count"] for row in those]
        label = f"{fronts} front{'s'[: fronts > 1]}"
        axes[0].plot(counts, [row["load"]["audio_s_per_s"] for row in those], "o-", label=label)
        axes[1].plot(counts, [row["load"]["ttfb_p99_ms"] for row in those], "o-", label=f"p99, {label}")
    frame(axes[0], "devices", "seconds of audio per second")
    frame(axes[1], "devices", "time to first audio at saturation, ms")
    for axis in axes[:2]:
        axis.set_xticks(sorted({row["device_count"] for row in rows}))
    for axis, found in zip(axes[2:], each, strict=True):
        plot_trials(axis, found["trials"], [one["ttfb_ms"] for one in found["capacities"]])
        axis.set_title(f"devices {found['devices']}", loc="left")
    save(figure, path)
