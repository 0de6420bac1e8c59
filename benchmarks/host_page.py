"""How many people a host speaks to, as pages of Markdown: with one set of devices, and with more and more of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.markdown import grid, listed, ms

LISTENER = (
    "A listener hears speech without a pause: request after request, each sent when playback of the one before has "
    "ended. Somebody who listens half of the time counts half. So many are served within a bound if 99 of 100 requests "
    "had their first audio at the client by then, no playback ran dry and no request was refused or failed."
)


def capacity(table: Mapping[str, Any], name: str, picture: str) -> str:
    """The page of one server. `table` is what `benchmarks.capacity` writes beside it, `picture` a file or empty."""
    count, saturation = table["device_count"], table["saturation"]
    sections = [
        f"# Users in real time: {_devices(count, table['versions'])}\n\nThe numbers are in [{name}.json]({name}.json). "
        f"{LISTENER}",
        _capacities(table["capacities"], count),
        _picture(picture),
        "## Trials\n\n" + _trials(table["trials"]),
        f"{saturation['level']:g} users who ask as soon as they have all audio, and do not listen, got "
        f"{saturation['audio_s_per_s']:.0f} seconds of audio per second: about as many listeners could be spoken to if "
        "nobody minded waiting.",
        _conditions(table),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def scaling(table: Mapping[str, Any], name: str, picture: str) -> str:
    """The page of one server after another. `table` is what `benchmarks.scaling` writes beside it, `picture` a file or
    empty."""
    sections = [
        f"# More devices: {table['versions'].get('device', name)}\n\nWritten by `benchmarks.scaling`; the numbers are "
        f"in [{name}.json]({name}.json). {_together(table)}",
        "## At saturation\n\nUsers who ask for the next speech as soon as they have all audio, and do not listen. "
        "Efficiency is seconds of audio per second and device over those of the fewest devices.\n\n"
        + _saturations(table["rows"]),
        "## Who limits it\n\nCores that the processes of each role filled, and in brackets the share of the time "
        "that the busiest of their threads ran: Python runs in one thread of a process at a time, so that a front or a "
        "client near 1.00 can do no more. An engine's thread may also spin while its GPU works.\n\n"
        + _uses(table["rows"]),
        _picture(picture),
    ]
    if any(table["capacities"]):
        sections.append(f"## Users in real time\n\n{LISTENER}\n\n" + _each_capacity(table))
    return "\n\n".join(filter(None, [*sections, _conditions(table)])) + "\n"


def capacity_line(one: Mapping[str, Any]) -> str:
    """What was found for a bound, in a sentence."""
    many = "" if one["too_many"] is None else f", {one['too_many']} are too many"
    return f"first audio within {one['ttfb_ms']:g} ms: {one['listeners']} listeners{many}"


def _picture(file: str) -> str:
    return f"![]({file})" if file else ""


def _devices(count: int, versions: Mapping[str, Any]) -> str:
    name = versions.get("device", "one device")
    return name if count == 1 else f"{count} x {name}"


def _capacities(capacities: Sequence[Mapping[str, Any]], devices: int) -> str:
    lines = [
        [
            f"{one['ttfb_ms']:g} ms",
            str(one["listeners"]),
            f"{one['listeners'] / devices:.0f}",
            "-" if one["too_many"] is None else str(one["too_many"]),
        ]
        for one in capacities
    ]
    return (
        grid("first audio within|listeners|per device|too many", lines)
        + "\n\nToo many is the smallest count that was tried and not served."
    )


def _trials(trials: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        [
            f"{row['level']:g}",
            str(row["requests"]),
            *(ms(row[f"ttfb_{p}_ms"]) for p in ("p50", "p90", "p99")),
            ms(row["server_ttfb_p99_ms"]),
            str(row["late_streams"]),
            str(row["refused"] + row["failed"]),
            ms(row["longest_gap_p99_ms"]),
            f"{row['audio_s_per_s']:.0f}",
        ]
        for row in trials
    ]
    heads = "listeners|requests|TTFB p50|p90|p99|server p99|late|refused or failed|longest gap p99|audio-s/s"
    return "Times in ms, at the client from when a request was due.\n\n" + grid(heads, lines)


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
        parts.append(_capacities(one["capacities"], one["device_count"]))
        parts.append(_trials(one["trials"]))
    return "\n\n".join(parts)


def _together(table: Mapping[str, Any]) -> str:
    if table["together"]:
        return (
            "The servers of all rows were started together, several engines to a GPU where their devices overlap, and "
            "loaded one after another; those that are not under load sleep."
        )
    return "The servers ran one after another."


def _conditions(table: Mapping[str, Any]) -> str:
    seconds = table["utterance_s"]
    lines = [
        ["run", table["run"]],
        ["command", f"`{table['command']}`"],
        [
            "a request",
            f"{seconds:g} s of speech ({table['steps']} steps), a text of its own of {table['chars']} letters",
        ],
        ["timesteps", str(table["timesteps"])],
        ["slots of an engine", str(table["slots"])],
        ["client processes", str(table["clients"])],
        ["a trial", f"{table['settle_s']:g} s to settle, then requests count for {table['seconds']:g} s or more"],
        ["versions", listed(table["versions"])],
    ]
    return "## Conditions\n\n" + grid("|", lines)
