"""The page of a load on a server whose engines end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages import files
from benchmarks.pages.markdown import grid, listed
from benchmarks.pages.markdown import picture as markdown_picture

NOTE = (
    "Requests arrived at a fixed rate, whatever became of them. A listener plays audio as soon as it arrives: a stream "
    "is late if audio was missing then. Deaths: `kill` is SIGKILL, `stop` SIGSTOP, and `drain` the command with "
    "`--restart`."
)


def publish(table: Mapping[str, Any], folder: Path, name: str) -> None:
    """Write the files of a load into `folder`. The picture has a point for each stream, the others do not."""

    def draw(summary: Mapping[str, Any], path: Path) -> None:
        from benchmarks.soak import figure

        figure.draw_deaths(table["points"], summary["deaths"], path)

    summary = {key: value for key, value in table.items() if key != "points"}
    files.publish(summary, folder, name, render, draw)


def render(table: Mapping[str, Any], name: str, picture: str) -> str:
    versions = dict(table["versions"])
    device = versions.pop("device")
    rows = [
        ["streams", str(table["streams"])],
        ["that another engine went on with", str(table["continued"])],
        ["that ended with an error", str(sum(table["errors"].values()))],
        ["that were late", str(table["late"])],
        ["longest wait for a chunk of a stream that went on", f"{table['longest_outage_of_continued']:.2f} s"],
        ["late streams whose listener held more than that", str(table["late_with_enough_audio"])],
    ]
    first = [
        [label, *(f"{found[q]:.0f}" if found else "" for q in ("p50", "p90", "p99"))]
        for label, found in (
            ("all", table["first_audio_ms"]),
            ("of streams that began within 10 s of a death", table["first_audio_around_ms"]),
        )
    ]
    deaths = [
        [
            f"{death['at']:.0f}",
            death["engine"],
            death["way"],
            "" if death["ready"] is None else f"{death['ready'] - death['at']:.1f}",
        ]
        for death in table["deaths"]
    ]
    sections = [
        f"# Engines that end: {device}\n\nThe numbers are in [{name}.json]({name}.json). {NOTE}",
        grid("streams|number", rows),
        markdown_picture(picture),
        "## First audio, ms\n\n" + grid("streams|p50|p90|p99", first),
        "## Deaths\n\n" + grid("second|engine|how|all engines ready after, s", deaths),
        "## Errors\n\n" + grid("error|streams", [[error, str(n)] for error, n in table["errors"].items()])
        if table["errors"]
        else "",
        "## Other calls\n\n" + grid("call|number", [[call, str(n)] for call, n in table["other_calls"].items()]),
        f"```\n{table['command']}\n```",
        listed(versions),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"
