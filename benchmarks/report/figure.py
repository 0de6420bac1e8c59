"""The picture of a report's bursts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from benchmarks.pages.figures import INK, frame, save


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot step time, time to first audio and audio over streams: of this project, of the peer, and the floor."""
    streams = [row["streams"] for row in rows]
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    panels = (
        ("step_p50_ms", "step, ms (median)", "floor_ms"),
        ("ttfb_p50_ms", "time to first audio, ms (median)", None),
        ("audio_s_per_s", "seconds of audio per second", None),
    )
    for axis, (column, label, floor) in zip(axes, panels, strict=True):
        axis.plot(streams, [row[column] for row in rows], "o-", color=INK["ours"], label="voxcpm-grpc")
        if any(row[f"peer_{column}"] is not None for row in rows):
            peer = [row[f"peer_{column}"] for row in rows]
            axis.plot(streams, peer, "s-", color=INK["peer"], label="nano-vllm-voxcpm")
        if floor:
            axis.plot(streams, [row[floor] for row in rows], "--", color=INK["floor"], label="floor")
        frame(axis, "streams", label)
        axis.set_xscale("log", base=2)
        axis.set_xticks(streams, list(map(str, streams)))
    save(figure, path)
