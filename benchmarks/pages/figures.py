"""Colours and axes of all pictures. Needs matplotlib, which the `bench` extra installs.

Only modules named `figure` import this one, and commands import those only to draw.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

INK = {"ours": "#1f6f8b", "peer": "#c8553d", "floor": "#8a8a8a", "p50": "#1f6f8b", "p99": "#c8553d"}


def frame(axis: Any, x: str, y: str) -> None:
    """Label an axis and start it at 0."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(loc="upper left")


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110)
    plt.close(figure)
