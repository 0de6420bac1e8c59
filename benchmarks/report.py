"""Everything about one GPU in one run: ceilings, engine, peer, trace and server, as tables, pictures and a page.

    python tools/make_checkpoint.py DIR --full-size --never-stop
    python -m benchmarks.report --model DIR --name h200 --peer-python peer/bin/python

Writes NAME.json (the burst table), NAME-details.json (what every part measured), NAME.md (a page of both) and pictures
into `--out`, and the launches of a step per batch bucket into launches.json. The peer's environment is described in
`peer_nanovllm`. Parts left out by `--parts` are taken from NAME-details.json as an earlier run left them; a ratio is
stated only between parts of the same run, and only if the peer performs as it is known to on such a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.hardware import ROOT, command
from benchmarks.roofline import Ceilings, floor_seconds
from voxcpm_grpc.checkpoint import resolve

PARTS = ("ceilings", "engine", "peer", "trace", "serving")
TIMEOUT = 580  # seconds of one part


def measure(part: str, model: Path, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Run one part in a process of its own, so that it finds the GPU empty. What fails is a result too: its error."""
    output, plot = scratch / f"{part}.json", options.out / f"{options.name}-{part}.png"
    shape = ["--model", str(model), "--timesteps", str(options.timesteps), "--chars", str(options.chars)]
    bursts = ["--streams", options.streams, "--steps", str(options.steps), "--repeats", str(options.repeats)]
    loads = ["--closed", options.closed, "--open", options.open, "--requests", str(options.requests)]
    words = {
        "ceilings": ["benchmarks.roofline"],
        "engine": ["benchmarks.engine", *shape, *bursts],
        "peer": ["benchmarks.peer_nanovllm", *shape, *bursts],
        "trace": ["benchmarks.trace", *shape, "--streams", "all", "--plot", str(plot)],
        "serving": ["benchmarks.serving", *shape, *loads, "--plot", str(plot)],
    }[part]
    python, environment = sys.executable, dict(os.environ)
    if part == "peer":
        python = options.peer_python
        environment["PYTHONPATH"] = str(ROOT)  # and nothing of this project's own environment
    print(f"\n{part}: {' '.join(words)}", flush=True)
    try:
        subprocess.run([python, "-m", *words, "--json", str(output)], env=environment, check=True, timeout=TIMEOUT)
    except OSError as error:
        return {"error": f"{python} cannot be run: {error.strerror}"}
    except subprocess.CalledProcessError as error:
        return {"error": f"it ended with status {error.returncode}"}
    except subprocess.TimeoutExpired:
        return {"error": f"it took longer than {TIMEOUT} s"}
    return json.loads(output.read_text())


def table(details: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The burst table: this project, the floor and the peer side by side, None for what this run has not measured."""
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
    return {"rows": rows, "versions": versions, "command": details["command"]}


def _of_run(details: Mapping[str, Any], part: str, run: str) -> Mapping[str, Any]:
    found = details.get(part, {})
    return found if found.get("run") == run else {}


def launches(trace: Mapping[str, Any]) -> dict[str, Any]:
    """What a step puts on the GPU, by batch size."""
    columns = ("graph_launches", "graph_nodes", "kernels", "copies", "memsets")
    buckets = {str(row["streams"]): {column: row[column] for column in columns} for row in trace["rows"]}
    return {"buckets": buckets, "versions": trace["versions"], "command": trace["command"]}


def publish(details: Mapping[str, Any], model: Path, options: argparse.Namespace) -> None:
    """Write everything that these details allow."""
    out, name = options.out, options.name
    write(out / f"{name}-details.json", details)
    if "rows" in details.get("trace", {}):
        write(out / "launches.json", launches(details["trace"]))
    if "rows" in details.get("engine", {}):
        burst = table(details, json.loads((model / "config.json").read_text()))
        write(out / f"{name}.json", burst)
        (out / f"{name}.md").write_text(page.render(burst, details, name))
        from benchmarks import plots

        plots.burst(burst["rows"], out / f"{name}-burst.png")


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a checkpoint that never stops by itself")
    parser.add_argument("--name", default="h200", help="of the files to write")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure now")
    parser.add_argument("--streams", default="1,8,16,32,64")
    parser.add_argument("--steps", type=int, default=100, help="steps of each stream of a burst")
    parser.add_argument("--timesteps", type=int, default=10)
    parser.add_argument("--chars", type=int, default=110, help="characters of each text")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--closed", default="1,8,16,32,64")
    parser.add_argument("--open", default="4,8,16,24,32,40,48,64")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--peer-python", default="peer/bin/python", help="of the peer's environment")
    options = parser.parse_args()
    parts = [part for part in options.parts.split(",") if part]
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")

    options.out.mkdir(parents=True, exist_ok=True)
    model = resolve(options.model).resolve()
    details_path = options.out / f"{options.name}-details.json"
    details = json.loads(details_path.read_text()) if details_path.is_file() else {}
    run = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if "engine" in parts:
        details |= {
            "command": command(),
            "shape": {"steps": options.steps, "timesteps": options.timesteps, "chars": options.chars},
        }
    with tempfile.TemporaryDirectory() as scratch:
        for part in parts:
            details[part] = {"run": run} | measure(part, model, options, Path(scratch))
            publish(details, model, options)  # a part that hangs does not lose those before it
    if failed := [f"{part}: {details[part]['error']}" for part in parts if "error" in details[part]]:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
