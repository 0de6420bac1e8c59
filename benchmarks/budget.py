"""Count the operations of a step on a CPU, and compare them, and the launches of a step on a GPU, with a budget.

    python -m benchmarks.budget             counts, and lists the values over budget.json
    python -m benchmarks.budget --accept    writes the counted values to budget.json

In the budget, `cpu` holds counts of one step of the tests' tiny model by streams: `ops` is the number of operations
that PyTorch dispatches, and `calls` the number of calls into attention and kernels, by name, with any backend. `gpu`
holds limits for results/launches.json by batch size, if that file exists.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.engine.requests import requests
from benchmarks.measuring.environment import ROOT
from benchmarks.measuring.flags import command_parser
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.events import AudioChunk
from voxcpm_grpc.settings.engine import EngineSettings

TINY = ROOT / "tests" / "checkpoints" / "tiny"
BUDGET = Path(__file__).parent / "budget.json"
LAUNCHES = Path(__file__).parent / "results" / "launches.json"
STREAMS, TIMESTEPS = (1, 8), 10
SEAMS = ("voxcpm_grpc.attention", "voxcpm_grpc.kernels")
NOT_COUNTED = ("voxcpm_grpc.attention.base", "voxcpm_grpc.kernels.launch")  # arguments of a backend; host copies

Counts = dict[str, Any]  # numbers or further counts, by name


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class _Calls:
    """Counts calls of public functions in SEAMS from outside of them, while the block runs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> _Calls:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not _within(frame) or (frame.f_back is not None and _within(frame.f_back)):
            return
        name = frame.f_code.co_name
        if not name.startswith(("_", "<")):
            self.counts[name] += 1


def _within(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    return module.startswith(SEAMS) and not module.startswith(NOT_COUNTED)


def count() -> Counts:
    """The counts of one step of the tiny model on a CPU, by streams."""
    settings = EngineSettings(device="cpu", max_slots=max(STREAMS), timesteps=(TIMESTEPS,), graphs=False)
    engine = load_engine(TINY, "tiny", settings)
    return {str(streams): _count(engine, streams) for streams in STREAMS}


@torch.inference_mode()
def _count(engine: Engine, streams: int) -> Counts:
    burst = requests(0, streams, steps=8, timesteps=TIMESTEPS, chars=40)
    for request in burst:
        engine.add(request)
    chunks: Counter[str] = Counter()
    while len(chunks) < streams:
        chunks.update(id for id, event in engine.step() if isinstance(event, AudioChunk))
    with _Operations() as operations, _Calls() as calls:
        engine.step()
    for request in burst:
        engine.cancel(request.id)
    while engine.busy:
        engine.step()
    return {"ops": operations.count, "calls": dict(sorted(calls.counts.items()))}


def over(counted: Mapping[str, Any], budget: Mapping[str, Any], where: str = "") -> list[str]:
    """A line for each number that exceeds its budget or has none."""
    found = []
    for name, value in counted.items():
        key, limit = f"{where}{name}", budget.get(name)
        if isinstance(value, Mapping):
            found += over(value, limit or {}, f"{key}: ")
        elif limit is None or value > limit:
            found.append(f"{key} is {value}, its budget {'is missing' if limit is None else limit}")
    return found


def _whole(counted: Counts) -> Counts:
    """Each mean, rounded up: only some steps upload page numbers, and the trace has more or fewer of them."""
    return {
        name: _whole(value) if isinstance(value, dict) else value if isinstance(value, int) else int(value) + 1
        for name, value in counted.items()
    }


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--accept", action="store_true", help="write the counted values to budget.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counted: Counts = {"cpu": count()}
    if LAUNCHES.is_file():
        counted["gpu"] = json.loads(LAUNCHES.read_text())["buckets"]
    print(json.dumps(counted, indent=1))
    if options.accept:
        BUDGET.write_text(json.dumps(_whole(counted), indent=1) + "\n")
    elif excess := over(counted, json.loads(BUDGET.read_text())):
        sys.exit("\n".join(excess))


if __name__ == "__main__":
    main()
