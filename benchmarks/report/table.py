"""The tables of a report: bursts beside the floor and the peer, and the launches of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.roofline import Ceilings, floor_seconds


def table(details: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The table of bursts: this project, the floor and the peer side by side; None where this run has no value.

    details: the result of each part. config: the checkpoint's config.json.
    """
    engine, run = details["engine"], details["engine"]["run"]
    peer, ceilings = (_of_run(details, part, run) for part in ("peer", "ceilings"))
    peers = {row["streams"]: row for row in peer.get("rows", ())}
    rows = []
    for row in engine["rows"]:
        floor = None
        if "copy_tb_per_s" in ceilings:
            known = Ceilings(ceilings["copy_tb_per_s"], ceilings["matmul_tflop_per_s"])
            shape = details["shape"]
            context = row["prompt_tokens"] + shape["steps"] / 2
            floor = 1e3 * floor_seconds(
                config, int(row["streams"]), known, timesteps=shape["timesteps"], context=context
            )
        other = peers.get(row["streams"], {})
        columns = ("step_p50_ms", "ttfb_p50_ms", "audio_s_per_s")
        rows.append(
            {"streams": int(row["streams"])}
            | {column: row[column] for column in columns}
            | {"floor_ms": floor}
            | {f"peer_{column}": other.get(column) for column in columns}
        )
    versions = dict(engine["versions"]) | ({"peer": peer["versions"]} if "versions" in peer else {})
    return {
        "architecture": config.get("architecture", "voxcpm"),
        "step_audio_ms": engine.get("step_audio_ms", 160.0),  # results of VoxCPM2 from before it was recorded lack it
        "rows": rows,
        "versions": versions,
        "command": details["command"],
    }


def _of_run(details: Mapping[str, Any], part: str, run: str) -> Mapping[str, Any]:
    found = details.get(part, {})
    return found if found.get("run") == run else {}


def launches(trace: Mapping[str, Any]) -> dict[str, Any]:
    """The launches of a step on the GPU, by batch size."""
    columns = ("graph_launches", "graph_nodes", "kernels", "copies", "memsets")
    buckets = {str(row["streams"]): {column: row[column] for column in columns} for row in trace["rows"]}
    return {"buckets": buckets, "versions": trace["versions"], "command": trace["command"]}
