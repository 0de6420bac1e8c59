"""Pictures of the tables. Nothing else imports matplotlib, which the `bench` extra brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

if TYPE_CHECKING:
    from benchmarks import trace

INK = {"ours": "#1f6f8b", "peer": "#c8553d", "floor": "#8a8a8a", "p50": "#1f6f8b", "p99": "#c8553d"}
COLOURS = {"kernels": "#1f6f8b", "copies": "#c8553d", "memsets": "#e0a458"}
SPEECH = ("#1f6f8b", "#6fa8bd")  # segments in turn
SILENCES = {"inside": "#c8553d", "between": "#e0a458", "underrun": "#7a1f6b"}
SILENCE_LABELS = {
    "inside": "silence in a sentence",
    "between": "silence between sentences",
    "underrun": "silence in a segment",
}
WRITING = {"once": "all in one message", "pause": "8 words a second, a pause after the first sentence"}
LEGENDS = 1.25  # height of a panel with two legends over that of its data


def burst(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Step time and time to first audio against streams, of this project, the peer and the floor."""
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
        _frame(axis, "streams", label)
        axis.set_xscale("log", base=2)
        axis.set_xticks(streams, list(map(str, streams)))
    _save(figure, path)


def serving(table: Mapping[str, Any], path: Path) -> None:
    """For each loop: time to first audio, gaps, and what it carried."""
    loops = [loop for loop in ("closed", "open") if any(row["loop"] == loop for row in table["rows"])]
    figure, grid = plt.subplots(len(loops), 3, figsize=(13, 4 * len(loops)), layout="constrained", squeeze=False)
    for axes, loop in zip(grid, loops, strict=True):
        rows = sorted((row for row in table["rows"] if row["loop"] == loop), key=lambda row: row["level"])
        levels = [row["level"] for row in rows]
        what = "users" if loop == "closed" else "requests per second"
        for name in ("p50", "p99"):
            axes[0].plot(levels, [row[f"ttfb_{name}_ms"] for row in rows], "o-", color=INK[name], label=name)
            server = [row[f"server_ttfb_{name}_ms"] for row in rows]
            axes[0].plot(levels, server, ":", color=INK[name], label=f"{name} at the server")
        _frame(axes[0], what, "time to first audio, ms")
        gaps = [row["longest_gap_p99_ms"] for row in rows]
        axes[1].plot(levels, gaps, "o-", color=INK["p99"], label="longest gap, p99")
        _frame(axes[1], what, "ms")
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
        _frame(axes[2], what, "seconds of audio per second")
    _save(figure, path)


def capacity(table: Mapping[str, Any], path: Path) -> None:
    """Time to first audio against listeners, and what was served within the bounds."""
    figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    _trials(axis, table["trials"], [one["ttfb_ms"] for one in table["capacities"]])
    _save(figure, path)


def scaling(table: Mapping[str, Any], path: Path) -> None:
    """Audio, and time to first audio, against devices; users in real time if they were searched for."""
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
    _frame(axes[0], "devices", "seconds of audio per second")
    _frame(axes[1], "devices", "time to first audio at saturation, ms")
    for axis in axes[:2]:
        axis.set_xticks(sorted({row["device_count"] for row in rows}))
    for axis, found in zip(axes[2:], each, strict=True):
        _trials(axis, found["trials"], [one["ttfb_ms"] for one in found["capacities"]])
        axis.set_title(f"devices {found['devices']}", loc="left")
    _save(figure, path)


def _trials(axis: Any, trials: Sequence[Mapping[str, Any]], bounds: Sequence[float]) -> None:
    levels = [row["level"] for row in trials]
    for name in ("p50", "p99"):
        axis.plot(levels, [row[f"ttfb_{name}_ms"] for row in trials], "o-", color=INK[name], label=name)
    faulty = [row for row in trials if row["late_streams"] or row["refused"] or row["failed"]]
    if faulty:
        values = [row["ttfb_p99_ms"] for row in faulty]
        axis.plot([row["level"] for row in faulty], values, "kx", markersize=9, label="late, refused or failed")
    for bound in bounds:
        axis.axhline(bound, linestyle="--", color=INK["floor"], linewidth=1)
    _frame(axis, "listeners in real time", "time to first audio, ms")
    axis.set_ylim(0, 3 * max(bounds))


def timeline(traces: Mapping[int, tuple[trace.Row, Sequence[trace.Activity]]], path: Path) -> None:
    """What the GPU ran during two steps of each count of streams."""
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
    _save(figure, path)


def dialogue(table: Mapping[str, Any], path: Path) -> None:
    """One dialogue of each way of writing, at the fewest streams: words when they are sent, segments when they are
    heard."""
    shown = {one["schedule"]: one for one in reversed(table["examples"])}  # the first of each
    names = list(dict.fromkeys(one["schedule"] for one in table["examples"]))
    figure, grid = plt.subplots(
        len(names), 1, figsize=(13, 1.15 * len(names) + 1), layout="constrained", sharex=True, squeeze=False
    )
    for axis, name in zip(grid[:, 0], names, strict=True):
        words, heard = shown[name]["words"], shown[name]["heard"]
        axis.vlines([word["at"] for word in words], 1.05, 1.45, color=INK["floor"], linewidth=1)
        axis.vlines([word["at"] for word in words if word["ends_sentence"]], 1.05, 1.75, color="black", linewidth=1.5)
        for part in heard:
            bar = [(part["begin"], part["end"] - part["begin"])]
            axis.broken_barh(bar, (0.15, 0.7), facecolors=SPEECH[part["segment"] % 2])
            if part["silence_s"]:
                gap = [(part["begin"] - part["silence_s"], part["silence_s"])]
                axis.broken_barh(gap, (0.4, 0.2), facecolors=SILENCES[part["silence"]])
        axis.set_yticks([0.5, 1.4], ["heard", "sent"])
        axis.set_ylim(0, 1.9)
        axis.grid(axis="x", alpha=0.3)
        axis.set_title(WRITING.get(name, f"{name} words a second"), loc="left", fontsize=10)
    grid[-1, 0].set_xlabel("seconds since the first word was sent")
    grid[-1, 0].set_xlim(left=-0.2)
    lines = [Line2D([], [], color=INK["floor"], label="a word"), Line2D([], [], color="black", label="a full stop")]
    bars = [Patch(color=colour, label="a segment" if colour == SPEECH[0] else "the next one") for colour in SPEECH]
    gaps = [Patch(color=SILENCES[kind], label=label) for kind, label in SILENCE_LABELS.items()]
    figure.legend(handles=[*lines, *bars, *gaps], loc="outside upper center", ncols=7, frameon=False)
    _save(figure, path)


def _frame(axis: Any, x: str, y: str) -> None:
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(loc="upper left")


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110)
    plt.close(figure)
