"""Traces of GPU activities by the profiler."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.trace.activities import Activity, activities


def traced(call: Callable[[], object], folder: Path) -> list[Activity]:
    """The GPU activities of a call. folder: for a temporary file."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    return activities(json.loads((folder / "trace.json").read_text())["traceEvents"])
