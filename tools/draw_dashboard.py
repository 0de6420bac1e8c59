"""Draws the Grafana dashboard from the answers of a Prometheus, as far as matplotlib can, to see its layout and data.

    python tools/draw_dashboard.py --prometheus http://127.0.0.1:9090 --seconds 300 --out docs/dashboard.png

Needs `pip install '.[bench]'`. It asks Prometheus what Grafana would ask, and puts each panel where Grafana puts it.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
DASHBOARD = ROOT / "server/deploy/grafana/dashboards/voxcpm-grpc.json"
COLUMNS, CELL_WIDTH, CELL_HEIGHT = 24, 0.75, 0.42  # of Grafana's grid; inches
POINTS = 200


class Prometheus:
    """The queries of a dashboard over the last seconds."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url, self._seconds, self._end = url, seconds, time.time()
        self._step = max(1.0, seconds / POINTS)

    def series(self, query: str, legend: str) -> list[tuple[str, list[float], list[float]]]:
        """Name, seconds before the end, and values of each series."""
        parameters = {
            "query": self._filled_in(query),
            "start": self._end - self._seconds,
            "end": self._end,
            "step": self._step,
        }
        url = f"{self._url}/api/v1/query_range?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            found = json.load(answer)["data"]["result"]
        return [
            (
                _name(legend, one["metric"]),
                [float(at) - self._end for at, _ in one["values"]],
                [float(value) for _, value in one["values"]],
            )
            for one in found
        ]

    def _filled_in(self, query: str) -> str:
        interval = f"{max(20, round(4 * self._step))}s"
        for name, value in {"$__rate_interval": interval, "$job": "voxcpm-grpc", "$instance": ".*"}.items():
            query = query.replace(name, value)
        return query


def _name(legend: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)


def draw(board: dict[str, Any], prometheus: Prometheus, out: Path) -> None:
    """Write a picture of all panels."""
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure = plt.figure(figsize=(COLUMNS * CELL_WIDTH, height * CELL_HEIGHT), facecolor="white")
    for panel in board["panels"]:
        place = panel["gridPos"]
        left, bottom = place["x"] / COLUMNS, 1 - (place["y"] + place["h"]) / height
        box = (left + 0.028, bottom + 1.1 / height, place["w"] / COLUMNS - 0.04, (place["h"] - 2.3) / height)
        if panel["type"] == "row":
            figure.text(0.01, bottom + 0.3 / height, panel["title"], fontsize=14, weight="bold")
            continue
        figure.text(left + 0.01, bottom + (place["h"] - 0.8) / height, panel["title"], fontsize=10, weight="bold")
        found = [
            one for target in panel["targets"] for one in prometheus.series(target["expr"], target["legendFormat"])
        ]
        if panel["type"] == "stat":
            values = [value for _, _, series in found for value in series[-1:] if not math.isnan(value)]
            text = _with_unit(values[0], panel["fieldConfig"]["defaults"]["unit"]) if values else "no data"
            figure.text(left + place["w"] / COLUMNS / 2, bottom + 1.4 / height, text, fontsize=22, ha="center")
            continue
        _plot(figure.add_axes(box), panel, found)
    figure.savefig(out, dpi=60)
    plt.close(figure)


def _plot(axes: Any, panel: dict[str, Any], found: list[tuple[str, list[float], list[float]]]) -> None:
    axes.tick_params(labelsize=7)
    if panel["type"] == "table":
        axes.axis("off")
        axes.text(0, 0.5, f"{len(found)} rows", fontsize=9)
        return
    if not any(found):
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes)
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    if panel["type"] == "heatmap":
        for name, at, values in found:
            axes.plot(at, values, linewidth=0.8, label=name)
    elif custom["stacking"]["mode"] == "normal" and found and len({len(at) for _, at, _ in found}) == 1:
        axes.stackplot(found[0][1], *(values for *_, values in found), labels=[name for name, *_ in found], alpha=0.6)
    else:
        for name, at, values in found:
            axes.plot(at, values, linewidth=1, label=name)
    axes.set_ylim(bottom=0)
    unit = panel["fieldConfig"]["defaults"].get("unit", "none")
    axes.yaxis.set_major_formatter(lambda value, _: _with_unit(value, unit))
    if 0 < len(found) <= 6:
        axes.legend(fontsize=6, loc="upper left", frameon=False)


def _with_unit(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s":
        return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"
    if unit == "bytes":
        return f"{value / 2**20:.4g} MiB"
    return f"{value:.3g}{ {'reqps': ' /s', 'ops': ' /s'}.get(unit, '') }"


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the Grafana dashboard from the answers of a Prometheus.")
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL")
    parser.add_argument("--seconds", type=float, default=300, help="length of the time axis")
    parser.add_argument("--out", type=Path, default=Path("dashboard.png"))
    options = parser.parse_args()
    draw(json.loads(DASHBOARD.read_text("utf-8")), Prometheus(options.prometheus, options.seconds), options.out)


if __name__ == "__main__":
    main()
