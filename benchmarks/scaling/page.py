"""The page of `benchmarks.scaling`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.capacity.page import CAPACITY_NOTE, LISTENER, TRIAL_NOTE, capacities, conditions, trials
from benchmarks.pages import files
from benchmarks.pages.markdown import grid, ms
from benchmarks.pages.markdown import picture as markdown_picture


def publish(table: Mapping[str, Any], folder: Path, name: str) -> None:
    """Write the files of `benchmarks.scaling` into `folder`."""
    files.publish(table, folder, name, render, _draw)


def _draw(table: Mapping[str, Any], path: Path) -> None:
    from benchmarks.scaling import figure

    figure.draw(table, path)


def render(table: Mapping[str, Any], name: str, picture: str) -> str:
    """The page of all servers."""
    sections = [
        f"# More devices: {table['versions'].get('device', name)}\n\n`benchmarks.scaling` wrote this page; the numbers "
        f"are in [{name}.json]({name}.json). {_together(table)}",
        "## At saturation\n\nEach user sends a request as soon as the one before has ended. Efficiency is the audio "
        "per second and device, over that of the server with the fewest devices. Times are in ms.\n\n"
        + _saturations(table["rows"]),
        "## The limit\n\nFor each role, the cores that its processes used, and in brackets the share of the time that "
        "their busiest thread ran. Python code runs in one thread of a process at a time, so a front or a client near "
        "1.00 is at its limit. The thread of an engine may also spin while its GPU works.\n\n" + _uses(table["rows"]),
        markdown_picture(picture),
    ]
    if any(table["capacities"]):
        sections.append(f"## Listeners in real time\n\n{LISTENER}\n\n{CAPACITY_NOTE}\n\n{TRIAL_NOTE}")
        sections.append(_each_capacity(table))
    return "\n\n".join(filter(None, [*sections, conditions(table)])) + "\n"


def _saturations(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        [
            row["devices"],
            str(row["fronts"]),
            *(f"{row['load'][column]:g}" for column in ("level", "requests")),
            f"{row['load']['audio_s_per_s']:.0f}",
            f"{row['efficiency']:.3f}",
            *(ms(row["load"][column]) for column in ("ttfb_p50_ms", "ttfb_p99_ms", "server_ttfb_p99_ms")),
            *(str(row["load"][column]) for column in ("late_streams", "refused", "failed")),
        ]
        for row in rows
    ]
    heads = "devices|fronts|users|requests|audio-s/s|efficiency|TTFB p50|p99|server p99|late|refused|failed"
    return grid(heads, lines)


def _uses(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        [
            row["devices"],
            str(row["fronts"]),
            *(f"{use['cores']:.1f} ({use['busiest_thread']:.2f})" for use in row["uses"].values()),
            f"{row['host_cores']:.1f} of {row['host_cores_there']}",
            "-" if row["gpu_share"] is None else f"{row['gpu_share']:.0%}",
            row["limit"],
        ]
        for row in rows
    ]
    return grid("devices|fronts|" + "|".join(rows[0]["uses"]) + "|host|GPUs busy|limit", lines)


def _each_capacity(table: Mapping[str, Any]) -> str:
    parts = []
    for one in table["capacities"]:
        parts.append(f"Devices {one['devices']}, fronts {one['fronts']}:")
        parts.append(capacities(one["capacities"], one["device_count"]))
        parts.append(trials(one["trials"]))
    return "\n\n".join(parts)


def _together(table: Mapping[str, Any]) -> str:
    if table["together"]:
        return (
            "All servers were started together, with several engines on a GPU where their devices overlap, and were "
            "loaded one after another. Servers that are not under load are idle."
        )
    return "The servers ran one after another."
