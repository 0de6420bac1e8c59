"""The picture of a front's cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from benchmarks.pages.figures import INK, frame, save

STYLES = ("o-", "s--", "^:", "v-.")


def draw(table: Mapping[str, Any], path: Path) -> None:
    """Plot the CPU and the lateness of messages over the number of streams, for each variant."""
    figure, (cpu, late) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    names = list(dict.fromkeys(row["server"] for row in table["rows"]))
    for name, style in zip(names, STYLES, strict=False):
        rows = [row for row in table["rows"] if row["server"] == name]
        streams = [row["streams"] for row in rows]
        suffix = f", {name}" if len(names) > 1 else ""
        cpu.plot(streams, [row["thread_share"] for row in rows], style, color=INK["ours"], label=f"event loop{suffix}")
        total = [row["thread_share"] + row["others_share"] for row in rows]
        cpu.plot(streams, total, style, color=INK["floor"], label=f"whole front{suffix}")
        for key in ("p50", "p99"):
            values = [row[f"chunk_{key}_ms"] for row in rows]
            late.plot(streams, values, style, color=INK[key], label=f"{key}{suffix}")
    frame(cpu, f"streams, a chunk every {table['step_ms']:g} ms", "CPU, cores")
    frame(late, f"streams, a chunk every {table['step_ms']:g} ms", "lateness of a message at the client, ms")
    save(figure, path)
