"""The timeline of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from benchmarks.pages.figures import save
from benchmarks.trace.activities import Activity, Row

COLOURS = {"kernels": "#1f6f8b", "copies": "#c8553d", "memsets": "#e0a458"}


def draw(traces: Mapping[int, tuple[Row, Sequence[Activity]]], path: Path) -> None:
    """Draw the activities of two steps for each count of streams."""
    figure, axes = plt.subplots(
        len(traces), 1, figsize=(13, 1.6 * len(traces) + 0.6), layout="constrained", squeeze=False
    )
    for axis, (streams, (row, ran)) in zip(axes[:, 0], traces.items(), strict=True):
        begin = ran[0].start
        shown = [activity for activity in ran if activity.start < begin + 2e3 * row.traced_ms]
        for lane, (kind, colour) in enumerate(COLOURS.items()):
            bars = [((a.start - begin) / 1e3, (a.end - a.start) / 1e3) for a in shown if a.kind == kind]
            axis.broken_barh(bars, (lane, 0.8), facecolors=colour)
        axis.set_yticks([lane + 0.4 for lane in range(len(COLOURS))], list(COLOURS))
        axis.set_title(f"{streams} streams: idle {row.idle_share:.1%}, starved {row.starved_share:.1%}", loc="left")
        axis.set_xlabel("ms")
    save(figure, path)
