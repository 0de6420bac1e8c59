"""The page of a front's cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages import files
from benchmarks.pages.markdown import grid, listed, ms
from benchmarks.pages.markdown import picture as markdown_picture

NOTE = (
    "All streams are open at the same time and pass through one front, which is one process. A chunk is 160 ms of "
    "audio; a message holds one, or up to three if its listener has a second of audio. CPU of a chunk and of an RPC "
    "are those of the event loop's thread, which limits a front; CPU is the number of cores that this thread and all "
    "others of the front use. Memory is the growth of the process since it was idle, over the streams. The lateness of "
    "a message counts from the step of its last chunk to the client, in ms. RPC is the time from before the client's "
    "call to the front's call of the engines."
)


def publish(table: Mapping[str, Any], folder: Path, name: str) -> None:
    """Write the files of a front's cost into `folder`."""
    files.publish(table, folder, name, render, _draw)


def _draw(table: Mapping[str, Any], path: Path) -> None:
    from benchmarks.front import figure

    figure.draw(table, path)


def render(table: Mapping[str, Any], name: str, picture: str) -> str:
    """The page of one run."""
    versions = dict(table["versions"])
    device = versions.pop("device")
    sections = [
        f"# One front: {device}\n\nThe numbers are in [{name}.json]({name}.json). {NOTE}",
        f"Each stream receives a chunk every {table['step_ms']:g} ms.",
        _costs(table),
        markdown_picture(picture),
        _comparison(table),
        f"```\n{table['command']}\n```",
        listed(versions),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _costs(table: Mapping[str, Any]) -> str:
    lines = [
        [
            row["server"],
            str(row["streams"]),
            f"{row['chunks_per_s']:.0f}",
            f"{row['thread_share']:.2f}",
            f"{row['thread_share'] + row['others_share']:.2f}",
            f"{row['chunk_us']:.1f} us",
            f"{row['rpc_us']:.0f} us",
            "-" if row["stream_kb"] is None else f"{row['stream_kb']:.0f} kB",
            ms(row["chunk_p50_ms"]),
            ms(row["chunk_p99_ms"]),
            ms(row["first_p99_ms"]),
            ms(row["rpc_p99_ms"]),
        ]
        for row in table["rows"]
    ]
    heads = "server|streams|chunks/s|event loop|CPU|a chunk|an RPC|a stream|late p50|late p99|first chunk p99|RPC p99"
    return grid(heads, lines)


def _comparison(table: Mapping[str, Any]) -> str:
    """CPU time of the event loop with each variant against the first one; empty with one variant."""
    first = table["rows"][0]["server"]
    base = {row["streams"]: row for row in table["rows"] if row["server"] == first}
    lines = [
        [row["server"], str(row["streams"]), *(_more(row[key], base[row["streams"]][key]) for key in COMPARED)]
        for row in table["rows"]
        if row["server"] != first
    ]
    if not lines:
        return ""
    return f"## Against {first}\n\n" + grid("server|streams|a chunk|an RPC|event loop", lines)


COMPARED = ("chunk_us", "rpc_us", "thread_share")


def _more(value: float, base: float) -> str:
    return f"{100 * (value / base - 1):+.1f} %"
