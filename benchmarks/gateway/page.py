"""The page of the gateway's cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages.files import write_json
from benchmarks.pages.markdown import grid, listed, ms

NOTE = (
    "All users speak at the same time, each text once by gRPC and once by HTTP, with the same options and in turns. "
    "The time counts from before the call to the first audio in the client, in ms. Added is HTTP less gRPC."
)


def publish(table: Mapping[str, Any], folder: Path, name: str) -> None:
    """Write NAME.json and NAME.md into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", table)
    (folder / f"{name}.md").write_text(render(table, name))


def _speaker(table: Mapping[str, Any]) -> str:
    if step := table.get("step_ms"):
        return f"An engine without a model makes a chunk for every stream in {step:g} ms."
    return f"The model is {table['model']}."


def render(table: Mapping[str, Any], name: str) -> str:
    """The page of one run."""
    versions = dict(table["versions"])
    device = versions.pop("device")
    lines = [
        [
            str(row["users"]),
            str(row["calls"]),
            *(ms(row[key]) for key in ("grpc_p50_ms", "http_p50_ms", "grpc_p90_ms", "http_p90_ms")),
            f"{row['added_p50_ms']:+.2f}",
            f"{row['added_mean_ms']:+.2f}",
            f"{row['ratio']:.3f}",
        ]
        for row in table["rows"]
    ]
    heads = "users|calls|gRPC p50|HTTP p50|gRPC p90|HTTP p90|added p50|added mean|ratio p50"
    sections = [
        f"# First audio through the HTTP gateway: {device}",
        f"{_speaker(table)} The numbers are in [{name}.json]({name}.json). {NOTE}",
        grid(heads, lines),
        f"```\n{table['command']}\n```",
        listed(versions),
    ]
    return "\n\n".join(sections) + "\n"
