"""The picture of `benchmarks.serving`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from benchmarks.pages.figures import INK, frame, save

LEGENDS = 1.25  # height of a panel, as a multiple of its data: room for two legends


def draw(table: Mapping[str, Any], path: Path) -> None:
    """Plot, for each loop, the time to first audio, the longest gaps and the audio per second."""
    loops = [loop for loop in ("closed", "open") if any(row["loop"] == loop for row in table["rows"])]
    figure, grid = plt.subplots(len(loops), 3, figsize=(13, 4 * len(loops)), layout="constrained", squeeze=False)
    for axes, loop in zip(grid, loops, strict=True):
        rows = sorted((row for row in table["rows"] if row["loop"] == loop), key=lambda row: row["level"])
        levels = [row["level"] for row in rows]
        level = "users" if loop == "closed" else "requests per second"
        for name in ("p50", "p99"):
            axes[0].plot(levels, [row[f"ttfb_{name}_ms"] for row in rows], "o-", color=INK[name], label=name)
            server = [row[f"server_ttfb_{name}_ms"] for row in rows]
            axes[0].plot(levels, server, ":", color=INK[name], label=f"{name} at the server")
        frame(axes[0], level, "time to first audio, ms")
        gaps = [row["longest_gap_p99_ms"] for row in rows]
        axes[1].plot(levels, gaps, "o-", color=INK["p99"], label="longest gap, p99")
        frame(axes[1], level, "gap between two chunks, ms")
        axes[1].set_ylim(0, LEGENDS * max(gaps))
        shares = axes[1].twinx()
        for column, style, label in (("late_streams", "s--", "late"), ("refused", "^--", "refused")):
            share = [100 * row[column] / row["requests"] for row in rows]
            shares.plot(levels, share, style, color=INK["floor"], label=label)
        shares.set_ylabel("% of requests")
        shares.set_ylim(0, LEGENDS * 100)
        shares.set_yticks(range(0, 101, 20))
        shares.legend(loc="upper right")
        axes[2].plot(levels, [row["audio_s_per_s"] for row in rows], "o-", color=INK["ours"], label="audio")
        frame(axes[2], level, "seconds of audio per second")
    save(figure, path)
