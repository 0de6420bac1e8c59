"""The page of a report, with the comparison to the peer where it is valid."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.pages.markdown import grid, listed, ms

KnownPeer = Mapping[int, Mapping[str, float]]

# nano-vllm-voxcpm 2.0.5 with flash-attn 2.8.3 on one H200, 100 steps, texts of about 90 tokens, measured 2026-11-20:
# median step and median time to first audio, in ms, by architecture and streams.
KNOWN_PEER: Mapping[str, KnownPeer] = {
    "voxcpm2": {
        1: {"step_p50_ms": 12.20, "ttfb_p50_ms": 36.5},
        8: {"step_p50_ms": 15.20, "ttfb_p50_ms": 47.2},
        16: {"step_p50_ms": 19.04, "ttfb_p50_ms": 47.6},
        32: {"step_p50_ms": 27.72, "ttfb_p50_ms": 65.5},
        64: {"step_p50_ms": 48.28, "ttfb_p50_ms": 143.9},
    }
}
TOLERANCE = 0.15  # share by which the peer may differ from that; beyond it, there is no comparison
DISSECTED = ("1", "16", "64")  # counts of streams whose kernels and gaps the page lists; the trace has more
GAPS = 6  # of the widest gaps, those that the page lists
# PyTorch's names of kernels, and those among them that name only the loop over the elements.
PYTORCH_NAME = re.compile(r"at::native::(?:\(anonymous namespace\)::)?(\w+)")
LOOPS = {
    "elementwise_kernel",
    "vectorized_elementwise_kernel",
    "index_elementwise_kernel",
    "gpu_kernel_impl_nocast",
    "gpu_index_kernel",
}


def ratio(row: Mapping[str, Any], column: str, known: KnownPeer | None) -> float | None:
    """The peer's time over this project's; None if the peer was not measured, or deviates from its known time."""
    peer = row[f"peer_{column}"]
    if peer is None or deviation(row, column, known) is not None:
        return None
    return peer / row[column]


def deviation(row: Mapping[str, Any], column: str, known: KnownPeer | None) -> float | None:
    """The share by which the peer differs from its known time, if that is more than TOLERANCE.

    None if it is less, if the peer was not measured, or if nobody has measured it with this model before (`known` is
    None); infinity if no time is known for so many streams.
    """
    peer = row[f"peer_{column}"]
    if peer is None or known is None:
        return None
    time = known.get(row["streams"], {}).get(column)
    if time is None:
        return float("inf")
    off = peer / time - 1
    return off if abs(off) > TOLERANCE else None


def render(table: Mapping[str, Any], details: Mapping[str, Any], name: str) -> str:
    """The page. `table` is the content of NAME.json, `details` that of NAME-details.json."""
    heading = details["engine"]["versions"].get("device", name)
    if "model" in details:  # results from before it was recorded are of VoxCPM2
        heading += f": {details['model']}"
    sections = [
        f"# {heading}\n\n`benchmarks.report` wrote this page; the numbers "
        f"are in [{name}.json]({name}.json) and [{name}-details.json]({name}-details.json).",
        _bursts(table, details, name),
        _peer(table, details),
        _conditions(table, details),
        _trace(details, name),
        _serving(details, name),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _bursts(table: Mapping[str, Any], details: Mapping[str, Any], name: str) -> str:
    measured = {row["streams"]: row for row in details["engine"]["rows"]}
    known = KNOWN_PEER.get(table["architecture"])
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
                _times(ratio(row, "step_p50_ms", known)),
                _times(ratio(row, "ttfb_p50_ms", known)),
            ]
        )
    heads = "streams|floor|step p50|p99|over floor|TTFB p50|p90|p99|RTF|audio-s/s|peer step|peer TTFB|peer audio-s/s"
    heads += "|faster step|faster TTFB"
    shape = details["shape"]
    tokens, cached = (
        max(row[column] for row in details["engine"]["rows"]) for column in ("prompt_tokens", "cached_prefix_tokens")
    )
    return (
        f"## A burst\n\nAll requests are submitted at once. Each has {shape['steps']} steps "
        f"({table['step_audio_ms']:.0f} ms of audio a step), "
        f"{shape['timesteps']} timesteps, guidance 2.0 and a prompt of {tokens:.0f} positions with a text of its own "
        f"({cached:.0f} positions cached). Times are in ms, medians over bursts. A step is the time between two chunks "
        "of a stream while all streams run. The engine runs in the process that measures it. The peer is called "
        "through its asynchronous interface, and its engine runs in a process of its own.\n\n"
        + grid(heads, lines)
        + f"\n\n![]({name}-burst.png)"
    )


def _peer(table: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    """The validity of the comparison with the peer."""
    peer = details.get("peer", {})
    if "error" in peer:
        return f"The peer has no result: {peer['error']}."
    if any(row["peer_step_p50_ms"] is None for row in table["rows"]):
        return "The peer was not measured in this run at every count of streams, so some rows have no ratio."
    known = KNOWN_PEER.get(table["architecture"])
    if known is None:
        return "No other measurement of the peer with this model is known, with which its times could be compared."
    faults = []
    for row in table["rows"]:
        for column, words in (("step_p50_ms", "step"), ("ttfb_p50_ms", "time to first audio")):
            if (off := deviation(row, column, known)) is not None:
                faults.append(f"{words} at {_streams(row['streams'])} ({off:+.0%})")
    if not faults:
        return f"The peer's times are within {TOLERANCE:.0%} of its known times on this GPU."
    return (
        f"The peer's times differ by more than {TOLERANCE:.0%} from its known times on an H200, so the page "
        f"states no ratio for: {', '.join(faults)}."
    )


def _conditions(table: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    engine, peer, ceilings = (details.get(part, {}) for part in ("engine", "peer", "ceilings"))
    lines = [["run", engine["run"]], ["command", f"`{table['command']}`"]]
    if "copy_tb_per_s" in ceilings:
        lines.append(["copy, bytes read and written", f"{ceilings['copy_tb_per_s']:.2f} TB/s"])
        lines.append(["bfloat16 product of 8192 x 8192", f"{ceilings['matmul_tflop_per_s']:.0f} TFLOP/s"])
    for name, part in (("engine", engine), ("peer", peer)):
        if part.get("memory_gib"):
            cache = f", of which KV cache {part['kv_gib']:.1f} GiB" if "kv_gib" in part else ""
            lines.append([f"GPU memory, {name}", f"{part['memory_gib']:.1f} GiB{cache}"])
    for name, part in (("versions", engine), ("versions, peer", peer)):
        if "versions" in part:
            lines.append([name, listed(part["versions"])])
    return (
        "## Conditions\n\n" + grid("|", lines) + "\n\nThe floor is the time at these ceilings to read every "
        "weight once for each evaluation, or to compute its products if that takes longer. The codec is not part of it."
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
        f"## The GPU during a step\n\nRun {trace['run']}. Times are in ms for one step. Busy is the union of all "
        "kernels, copies and memsets. Idle is the rest of the traced time, including gaps between kernels. Starved is "
        "the part of it in gaps of more than 10 us. A step launches three graphs: one generates the patch, then one "
        "decodes it to audio while another one runs the language models. A kernel may start before the one that it "
        "waits for has ended, so the times of single kernels can add up to more than busy.\n\n"
        + grid(heads, lines)
        + f"\n\n![]({name}-trace.png)"
    )
    text += _parts(trace)
    for streams, top in trace["heaviest"].items():
        if streams not in DISSECTED:
            continue
        rows = [[_kernel(one["name"]), f"{one['ms']:.3f}", f"{one['runs']:.0f}"] for one in top]
        text += f"\n\nLongest kernels at {_streams(int(streams))}, all runs of a step added up:\n\n" + grid(
            "kernel|ms a step|runs", rows
        )
        if gaps := trace.get("widest_gaps", {}).get(streams):
            rows = [
                [_kernel(gap["after"]), _kernel(gap["before"]), f"{gap['ms']:.3f}", f"{gap['gaps']:.1f}"]
                for gap in gaps[:GAPS]
            ]
            text += f"\n\nWidest gaps at {_streams(int(streams))}, all gaps between the same two kernels added up:\n\n"
            text += grid("after|before|ms a step|gaps", rows)
    return text


def _parts(trace: Mapping[str, Any]) -> str:
    """The tables of a step by graph and by part, which older results lack."""
    text = ""
    if graphs := {streams: spent for streams, spent in trace.get("graphs", {}).items() if spent}:
        names = list(next(iter(graphs.values())))
        rows = [[streams, *(ms(spent[name]) for name in names)] for streams, spent in graphs.items()]
        text += (
            "\n\nEach graph of a step, from its first beginning to its last end. Audio and language models run at the "
            "same time.\n\n" + grid("|".join(["streams", *names]), rows)
        )
    if parts := trace.get("parts"):
        columns = ("patch_ms", "diffusion_ms", "language_ms", "encoder_ms", "audio_ms")
        rows = [[str(one["streams"]), *(ms(one[column]) for column in columns)] for one in parts]
        heads = "streams|patch|of which LocDiT|language models and LocEnc|of which LocEnc|audio"
        text += "\n\nEach part of a step alone, in a graph of its own:\n\n" + grid(heads, rows)
    return text


def _kernel(name: str) -> str:
    """A kernel's name in short. PyTorch's names spell out all template arguments; only the operation is kept."""
    operations = (part for part in PYTORCH_NAME.findall(name) if part not in LOOPS)
    return f"`{next(operations, name).replace('|', ' ')}`"


def _serving(details: Mapping[str, Any], name: str) -> str:
    serving = details.get("serving", {})
    if "rows" not in serving:
        return ""
    text = (
        f"## Through the server\n\nRun {serving['run']}. The clients run in other processes; every request has a text "
        "of its own and a fixed length. Times are in ms. The time to first audio (TTFB) counts at the client from when "
        "a request was due, and at the server from its arrival there. A stream is late if playback that begins with "
        "its first chunk runs out of audio."
    )
    titles = (
        ("closed", "users", "Closed loop: each user sends a request as soon as the one before has ended"),
        ("open", "requests/s", "Open loop: requests arrive at random (Poisson)"),
    )
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


def _streams(count: int) -> str:
    return f"{count} stream" if count == 1 else f"{count} streams"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}x"
