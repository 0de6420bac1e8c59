"""The page of a server's capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import files
from benchmarks.pages.markdown import grid, listed, ms
from benchmarks.pages.markdown import picture as markdown_picture

LISTENER = (
    "A listener plays speech without a pause: each request is sent when playback of the one before has ended. A user "
    "who listens half of the time counts as half a listener. A number of listeners is served within a bound if 99 of "
    "100 requests are heard within the bound, no playback runs out of audio, and no request is refused or fails. A "
    "request is heard when a client that plays audio as soon as it arrives plays its first sound."
)
CAPACITY_NOTE = (
    "Too many is the smallest number of listeners that a trial did not serve. The listeners are the largest number "
    "below it that a trial served."
)
TRIAL_NOTE = (
    "Times are in ms. The time to first audio (TTFB), and to the first sound (heard), counts at the client from when a "
    "request was due, and at the server from its arrival there. A stream is late if playback that begins with its "
    "first chunk runs out of audio."
)


def publish(table: Mapping[str, Any], folder: Path, name: str) -> None:
    """Write the files of a server's capacity into `folder`."""
    files.publish(table, folder, name, render, _draw)


def _draw(table: Mapping[str, Any], path: Path) -> None:
    from benchmarks.capacity import figure

    figure.draw(table, path)


def render(table: Mapping[str, Any], name: str, picture: str) -> str:
    """The page of one server."""
    count, saturation = table["device_count"], table["saturation"]
    sections = [
        f"# Listeners in real time: {_devices(count, table['versions'])}\n\nThe numbers are in "
        f"[{name}.json]({name}.json). {LISTENER}",
        capacities(table["capacities"], count),
        CAPACITY_NOTE,
        markdown_picture(picture),
        "## Trials\n\n" + TRIAL_NOTE,
        trials(table["trials"]),
        f"{saturation['level']:g} users, each of whom sends a request as soon as the one before has ended, received "
        f"{saturation['audio_s_per_s']:.0f} seconds of audio per second. That is about the number of listeners that "
        "the server could serve without any bound on the time until they hear the first sound.",
        conditions(table),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def capacity_line(one: Mapping[str, Any]) -> str:
    """The result for a bound, in one line."""
    many = "" if one["too_many"] is None else f", {one['too_many']} are too many"
    return f"heard within {one['ttfb_ms']:g} ms: {one['listeners']} listeners{many}"


def capacities(found: Sequence[Mapping[str, Any]], devices: int) -> str:
    """The table of results, one row for each bound."""
    lines = [
        [
            f"{one['ttfb_ms']:g} ms",
            str(one["listeners"]),
            f"{one['listeners'] / devices:.0f}",
            "-" if one["too_many"] is None else str(one["too_many"]),
        ]
        for one in found
    ]
    return grid("heard within|listeners|per device|too many", lines)


def trials(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of trials."""
    lines = [
        [
            f"{row['level']:g}",
            str(row["requests"]),
            *(ms(row[f"ttfb_{p}_ms"]) for p in ("p50", "p90", "p99")),
            ms(row["audible_p99_ms"]),
            ms(row["server_ttfb_p99_ms"]),
            str(row["late_streams"]),
            str(row["refused"] + row["failed"]),
            ms(row["longest_gap_p99_ms"]),
            f"{row['audio_s_per_s']:.0f}",
        ]
        for row in rows
    ]
    heads = "listeners|requests|TTFB p50|p90|p99|heard p99|server p99|late|refused or failed|longest gap p99|audio-s/s"
    return grid(heads, lines)


def conditions(table: Mapping[str, Any]) -> str:
    """The conditions of the run."""
    seconds = table["utterance_s"]
    lines = [
        ["run", table["run"]],
        ["command", f"`{table['command']}`"],
        [
            "a request",
            f"{seconds:g} s of speech ({table['steps']} steps), a text of its own of {table['chars']} characters",
        ],
        ["timesteps", str(table["timesteps"])],
        ["slots of an engine", str(table["slots"])],
        ["client processes", str(table["clients"])],
        ["a trial", f"{table['settle_s']:g} s to settle, then requests count for {table['seconds']:g} s or more"],
        ["versions", listed(table["versions"])],
    ]
    return "## Conditions\n\n" + grid("|", lines)


def _devices(count: int, versions: Mapping[str, Any]) -> str:
    name = versions.get("device", "one device")
    return name if count == 1 else f"{count} x {name}"
