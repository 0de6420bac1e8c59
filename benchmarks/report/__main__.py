"""Measure one GPU in one run: ceilings, engine, peer, trace and server, as tables, pictures and a page.

    python tools/make_checkpoint.py DIR --full-size --never-stop
    python -m benchmarks.report --model DIR --name h200 --peer-python peer/bin/python

It writes NAME.json (the table of bursts), NAME-details.json (the results of all parts), NAME.md (a page of both) and
pictures into `--out`, and the launches of a step by batch bucket into launches.json. `benchmarks.peer_nanovllm`
describes the peer's environment. Parts that `--parts` leaves out come from NAME-details.json, as an earlier run wrote
it. The page states a ratio only between parts of the same run, and only if the peer is as fast as is known of it.
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

from benchmarks.measuring.environment import ROOT, command
from benchmarks.measuring.flags import add_output_flags, command_parser
from benchmarks.pages.files import write_json
from benchmarks.report import page
from benchmarks.report.table import launches, table
from voxcpm_grpc.checkpoint import resolve

PARTS = ("ceilings", "engine", "peer", "trace", "serving")
TIMEOUT = 580  # seconds of a part


def measure(part: str, model: Path, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Run one part in a process of its own, so that the GPU is empty. The result of a part that fails is its error."""
    output, plot = scratch / f"{part}.json", options.out / f"{options.name}-{part}.png"
    shape = ["--model", str(model), "--timesteps", str(options.timesteps), "--chars", str(options.chars)]
    bursts = ["--streams", options.streams, "--steps", str(options.steps), "--repeats", str(options.repeats)]
    loads = ["--closed", options.closed, "--open", options.open, "--requests", str(options.requests)]
    words = {
        "ceilings": ["benchmarks.roofline"],
        "engine": ["benchmarks.engine", *shape, *bursts],
        "peer": ["benchmarks.peer_nanovllm", *shape, *bursts],
        "trace": ["benchmarks.trace", *shape, "--streams", "all", "--parts", "--plot", str(plot)],
        "serving": ["benchmarks.serving", *shape, *loads, "--plot", str(plot)],
    }[part]
    python, environment = sys.executable, dict(os.environ)
    if part == "peer":
        python = options.peer_python
        environment["PYTHONPATH"] = str(ROOT)  # without this project's own environment
    print(f"\n{part}: {' '.join(words)}", flush=True)
    try:
        subprocess.run([python, "-m", *words, "--json", str(output)], env=environment, check=True, timeout=TIMEOUT)
    except OSError as error:
        return {"error": f"{python} cannot be run: {error.strerror}"}
    except subprocess.CalledProcessError as error:
        return {"error": f"the command ended with status {error.returncode}"}
    except subprocess.TimeoutExpired:
        return {"error": f"the command took longer than {TIMEOUT} s"}
    return json.loads(output.read_text())


def publish(details: Mapping[str, Any], model: Path, options: argparse.Namespace) -> None:
    """Write all files for which there are results."""
    out, name = options.out, options.name
    write_json(out / f"{name}-details.json", details)
    if "rows" in details.get("trace", {}):
        write_json(out / "launches.json", launches(details["trace"]))
    if "rows" in details.get("engine", {}):
        bursts = table(details, json.loads((model / "config.json").read_text()))
        write_json(out / f"{name}.json", bursts)
        (out / f"{name}.md").write_text(page.render(bursts, details, name))
        from benchmarks.report import figure

        figure.draw(bursts["rows"], out / f"{name}-burst.png")


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument(
        "--model", required=True, help="a checkpoint that never stops: a directory or a hub repository id"
    )
    add_output_flags(parser, name="h200")
    parser.add_argument("--parts", default=",".join(PARTS), help="parts to measure, separated by commas")
    parser.add_argument("--streams", default="1,8,16,32,64", help="streams of each burst")
    parser.add_argument("--steps", type=int, default=100, help="steps of each stream of a burst")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--chars", type=int, default=110, help="characters of each text")
    parser.add_argument("--repeats", type=int, default=3, help="bursts of each row, after one that warms up")
    parser.add_argument("--closed", default="1,8,16,32,64", help="users in the closed loop")
    parser.add_argument("--open", default="4,8,16,24,32,40,48,64", help="arrivals a second in the open loop")
    parser.add_argument("--requests", type=int, default=300, help="requests at each rate of the open loop")
    parser.add_argument("--peer-python", default="peer/bin/python", help="Python of the peer's environment")
    options = parser.parse_args()
    parts = [part for part in options.parts.split(",") if part]
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(unknown)}; the parts are {', '.join(PARTS)}")

    options.out.mkdir(parents=True, exist_ok=True)
    model = resolve(options.model).resolve()
    details_path = options.out / f"{options.name}-details.json"
    details = json.loads(details_path.read_text()) if details_path.is_file() else {}
    run = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if "engine" in parts:
        details |= {
            "command": command(),
            "model": model.name,
            "shape": {"steps": options.steps, "timesteps": options.timesteps, "chars": options.chars},
        }
    with tempfile.TemporaryDirectory() as scratch:
        for part in parts:
            details[part] = {"run": run} | measure(part, model, options, Path(scratch))
            publish(details, model, options)  # after each part, so that one that hangs does not lose the others
    if failed := [f"{part}: {details[part]['error']}" for part in parts if "error" in details[part]]:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
