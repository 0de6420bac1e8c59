"""The picture of `benchmarks.dialogue`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.pages.figures import INK, save

SPEECH = ("#1f6f8b", "#6fa8bd")  # of segments, in turn
SILENCES = {"inside": "#c8553d", "between": "#e0a458", "underrun": "#7a1f6b"}
SILENCE_LABELS = {
    "inside": "silence in a sentence",
    "between": "silence between sentences",
    "underrun": "silence in a segment",
}
SCHEDULES = {"once": "all in one message", "pause": "8 words a second, a pause after the first sentence"}


def draw(table: Mapping[str, Any], path: Path) -> None:
    """Draw one dialogue of each schedule: its words when they are sent, its segments when they are played."""
    shown = {one["schedule"]: one for one in reversed(table["examples"])}  # the first one, at the fewest streams
    names = list(dict.fromkeys(one["schedule"] for one in table["examples"]))
    figure, grid = plt.subplots(
        len(names), 1, figsize=(13, 1.15 * len(names) + 1), layout="constrained", sharex=True, squeeze=False
    )
    for axis, name in zip(grid[:, 0], names, strict=True):
        words, parts = shown[name]["words"], shown[name]["played"]
        axis.vlines([word["at"] for word in words], 1.05, 1.45, color=INK["floor"], linewidth=1)
        axis.vlines([word["at"] for word in words if word["ends_sentence"]], 1.05, 1.75, color="black", linewidth=1.5)
        for part in parts:
            bar = [(part["begin"], part["end"] - part["begin"])]
            axis.broken_barh(bar, (0.15, 0.7), facecolors=SPEECH[part["segment"] % 2])
            if part["silence_s"]:
                gap = [(part["begin"] - part["silence_s"], part["silence_s"])]
                axis.broken_barh(gap, (0.4, 0.2), facecolors=SILENCES[part["silence"]])
        axis.set_yticks([0.5, 1.4], ["played", "sent"])
        axis.set_ylim(0, 1.9)
        axis.grid(axis="x", alpha=0.3)
        axis.set_title(SCHEDULES.get(name, f"{name} words a second"), loc="left", fontsize=10)
    grid[-1, 0].set_xlabel("seconds since the first word was sent")
    grid[-1, 0].set_xlim(left=-0.2)
    lines = [Line2D([], [], color=INK["floor"], label="a word"), Line2D([], [], color="black", label="a full stop")]
    bars = [Patch(color=colour, label="a segment" if colour == SPEECH[0] else "the next segment") for colour in SPEECH]
    gaps = [Patch(color=SILENCES[kind], label=label) for kind, label in SILENCE_LABELS.items()]
    figure.legend(handles=[*lines, *bars, *gaps], loc="outside upper center", ncols=7, frameon=False)
    save(figure, path)
