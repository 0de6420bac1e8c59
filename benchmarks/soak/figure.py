"""The picture of a soak."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from benchmarks.pages.figures import frame, save


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
