"""The results of a run as a page of Markdown, with what may be concluded from them and what may not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import grid, listed, ms

# nano-vllm-voxcpm 2.0.5 with flash-attn 2.8.3 on one H200, 100 steps, texts of about 90 tokens, measured 2026-11-20:
# median step and median time to first audio in ms, by streams.
KNOWN_PEER = {
    1: {"step_p50_ms": 12.20, "ttfb_p50_ms": 36.5},
    8: {"step_p50_ms": 15.20, "ttfb_p50_ms": 47.2},
    16: {"step_p50_ms": 19.04, "ttfb_p50_ms": 47.6},
    32: {"step_p50_ms": 27.72, "ttfb_p50_ms": 65.5},
    64: {"step_p50_ms": 48.28, "ttfb_p50_ms": 143.9},
}
TOLERANCE = 0.15  # share by which the peer may differ from that before a comparison with it says nothing
DISSECTED = ("1", "16", "64")  # counts of streams of which the page says what a step is made of; the trace has more
GAPS = 6  # how many of the widest it lists
# How PyTorch names what it was compiled to do, and of those names the ones that only say how elements are walked over.
PYTORCH_NAME = re.compile(r"at::native::(?:\(anonymous namespace\)::)?(\w+)")
LOOPS = {
    "elementwise_kernel",
    "vectorized_elementwise_kernel",
    "index_elementwise_kernel",
    "gpu_kernel_impl_nocast",
    "gpu_index_kernel",
}


def ratio(row: Mapping[str, Any], column: str) -> float | None:
    """How many times longer the peer takes; None if it was not measured or does not perform as it is known to."""
    peer = row[f"peer_{column}"]
    if peer is None or deviation(row, column) is not None:
        return None
    return peer / row[column]


def deviation(row: Mapping[str, Any], column: str) -> float | None:
    """By which share the peer differs from what is known of it, if that is too much, or infinity if nothing is."""
    peer = row[f"peer_{column}"]
    if peer is None:
        return None
    known = KNOWN_PEER.get(row["streams"], {}).get(column)
    if known is None:
        return float("inf")
    off = peer / known - 1
    return off if abs(off) > TOLERANCE else None


def render(table: Mapping[str, Any], details: Mapping[str, Any], name: str) -> str:
    """The page. `table` and `details` are what `report` writes beside it."""
    sections = [
        f"# {details['engine']['versions'].get('device', name)}\n\nWritten by `benchmarks.report`; "
        f"the numbers are in [{name}.json]({name}.json) and [{name}-details.json]({name}-details.json).",
        _bursts(table, details, name),
        _peer(table, details),
        _conditions(table, details),
        _trace(details, name),
        _serving(details, name),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _bursts(table: Mapping[str, Any], details: Mapping[str, Any], name: str) -> str:
    measured = {row["streams"]: row for row in details["engine"]["rows"]}
    lines = []
    for row in table["rows"]:
        own = measured[row["streams"]]
        lines.append(
            [
                str(row["streams"]),
                ms(row["floor_ms"]),
                ms(row["step_p50_ms"]),
                ms(own["step_p99_ms"]),
                _times(row["floor_ms"] and row["step_p50_ms"] / row["floor_ms"]),
                ms(row["ttfb_p50_ms"]),
                ms(own["ttfb_p90_ms"]),
                ms(own["ttfb_p99_ms"]),
                f"{own['rtf']:.4f}",
                f"{row['audio_s_per_s']:.1f}",
                ms(row["peer_step_p50_ms"]),
                ms(row["peer_ttfb_p50_ms"]),
                "-" if row["peer_audio_s_per_s"] is None else f"{row['peer_audio_s_per_s']:.1f}",
                _times(ratio(row, "step_p50_ms")),
                _times(ratio(row, "ttfb_p50_ms")),
            ]
        )
    heads = "streams|floor|step p50|p99|of floor|TTFB p50|p90|p99|RTF|audio-s/s|peer step|peer TTFB|peer audio-s/s"
    heads += "|faster step|faster TTFB"
    shape = details["shape"]
    tokens, cached = (
        max(row[column] for row in details["engine"]["rows"]) for column in ("prompt_tokens", "cached_prefix_tokens")
    )
    return (
        f"## A burst\n\nAll requests at once, {shape['steps']} steps each (160 ms of audio a step), prompts of "
        f"{tokens:.0f} positions, each with a text of its own ({cached:.0f} of them cached), {shape['timesteps']} "
        "timesteps, guidance 2.0. Times in ms, medians over bursts; a step is the time between two chunks of a stream "
        "while all streams run. The engine is called in its own process, the peer by its asynchronous interface, "
        "whose engine has a process of its own.\n\n" + grid(heads, lines) + f"\n\n![]({name}-burst.png)"
    )


def _peer(table: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    """What keeps the peer's columns from being a comparison."""
    peer = details.get("peer", {})
    if "error" in peer:
        return f"The peer gave no result: {peer['error']}."
    if any(row["peer_step_p50_ms"] is None for row in table["rows"]):
        return "The peer was not measured in this run at every count of streams, so there is no ratio there."
    faults = []
    for row in table["rows"]:
        for column, words in (("step_p50_ms", "step"), ("ttfb_p50_ms", "time to first audio")):
            if (off := deviation(row, column)) is not None:
                faults.append(f"{words} at {row['streams']} streams ({off:+.0%})")
    if not faults:
        return f"The peer performed within {TOLERANCE:.0%} of what is known of it on this GPU."
    return (
        f"The peer differs by more than {TOLERANCE:.0%} from what is known of it on an H200, so no ratio is claimed "
        f"for: {', '.join(faults)}."
    )


def _conditions(table: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    engine, peer, ceilings = (details.get(part, {}) for part in ("engine", "peer", "ceilings"))
    lines = [["run", engine["run"]], ["command", f"`{table['command']}`"]]
    if "copy_tb_per_s" in ceilings:
        lines.append(["copy, read and written", f"{ceilings['copy_tb_per_s']:.2f} TB/s"])
        lines.append(["bf16 product of 8192 x 8192", f"{ceilings['matmul_tflop_per_s']:.0f} TFLOP/s"])
    for who, part in (("engine", engine), ("peer", peer)):
        if part.get("memory_gib"):
            cache = f", of which KV cache {part['kv_gib']:.1f} GiB" if "kv_gib" in part else ""
            lines.append([f"GPU memory, {who}", f"{part['memory_gib']:.1f} GiB{cache}"])
    for who, part in (("versions", engine), ("versions, peer", peer)):
        if "versions" in part:
            lines.append([who, listed(part["versions"])])
    return (
        "## Conditions\n\n" + grid("|", lines) + "\n\nThe floor reads every weight once per evaluation or does "
        "its products, whichever takes longer, at these ceilings; the codec counts nothing in it."
    )


def _trace(details: Mapping[str, Any], name: str) -> str:
    trace = details.get("trace", {})
    if "rows" not in trace:
        return ""
    columns = ("kernels", "copies", "memsets", "graph_nodes", "graph_launches")
    lines = [
        [
            str(row["streams"]),
            *(ms(row[column]) for column in ("step_ms", "traced_ms", "busy_ms")),
            f"{row['idle_share']:.1%}",
            f"{row['starved_share']:.1%}",
            *(f"{row[column]:.0f}" for column in columns),
        ]
        for row in trace["rows"]
    ]
    heads = "streams|step|traced step|busy|idle|starved|kernels|copies|memsets|graph nodes|graph launches"
    text = (
        f"## What the GPU does\n\nRun {trace['run']}; times in ms per step. Busy is the union of all kernels, copies "
        "and memsets; idle is the rest of the traced time, gaps between kernels included, starved the part of it in "
        "gaps of more than 10 us. A step launches three graphs: one composes the patch, then one makes its audio "
        "beside the one of the language models. Kernels also start ahead of the one that they wait for, so the times "
        "of single kernels can add up to more than busy.\n\n" + grid(heads, lines) + f"\n\n![]({name}-trace.png)"
    )
    for streams, top in trace["heaviest"].items():
        if streams not in DISSECTED:
            continue
        rows = [[_kernel(one["name"]), f"{one['ms']:.3f}", f"{one['runs']:.0f}"] for one in top]
        text += f"\n\nHeaviest at {streams} streams:\n\n" + grid("kernel|ms|runs", rows)
        if gaps := trace.get("widest_gaps", {}).get(streams):
            rows = [
                [_kernel(gap["after"]), _kernel(gap["before"]), f"{gap['ms']:.3f}", f"{gap['gaps']:.1f}"]
                for gap in gaps[:GAPS]
            ]
            text += f"\n\nWidest gaps at {streams} streams, those between the same two kernels added up:\n\n"
            text += grid("after|before|ms a step|gaps", rows)
    return text


def _kernel(name: str) -> str:
    """A kernel's name, of PyTorch's only the part that tells what is done: they spell out all their templates."""
    telling = (part for part in PYTORCH_NAME.findall(name) if part not in LOOPS)
    return f"`{next(telling, name).replace('|', ' ')}`"


def _serving(details: Mapping[str, Any], name: str) -> str:
    serving = details.get("serving", {})
    if "rows" not in serving:
        return ""
    text = (
        f"## Through the server\n\nRun {serving['run']}. Clients in other processes; every request has a text of its "
        "own and a fixed length. Times to first audio in ms, at the client from when a request was due, and at the "
        "server from its arrival there. A stream is late if playback begun with its first chunk ran dry."
    )
    titles = (("closed", "users", "Users who speak request after request"), ("open", "requests/s", "Random arrivals"))
    for loop, level, title in titles:
        lines = [
            [
                f"{row['level']:g}",
                *(ms(row[f"ttfb_{p}_ms"]) for p in ("p50", "p90", "p95", "p99")),
                *(ms(row[f"server_ttfb_{p}_ms"]) for p in ("p50", "p99")),
                f"{row['late_streams']} of {row['requests']}",
                ms(row["longest_gap_p99_ms"]),
                str(row["refused"]),
                str(row["failed"]),
                f"{row['audio_s_per_s']:.0f}",
            ]
            for row in serving["rows"]
            if row["loop"] == loop
        ]
        if lines:
            heads = f"{level}|TTFB p50|p90|p95|p99|server p50|p99|late|longest gap p99|refused|failed|audio-s/s"
            text += f"\n\n{title}:\n\n" + grid(heads, lines)
    return text + f"\n\n![]({name}-serving.png)"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}x"
