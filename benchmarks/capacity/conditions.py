"""Flags and conditions of the commands that search for a server's capacity."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Any

from benchmarks.capacity.search import Plan
from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import add_output_flags
from benchmarks.serving import rows
from benchmarks.serving.rows import Row
from voxcpm_client import Client, ModelInfo
from voxcpm_grpc.machine.gpus import visible_gpus

NO_LIMIT = ("--limits.max-streams", "100000")  # flags of the server: its engines limit the load, not its settings


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the trials and of the files."""
    add_output_flags(parser)
    parser.add_argument("--settle", type=float, default=2.0, help="seconds of a trial before requests count")
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="seconds of a trial in which requests count, at least"
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=200,
        help="requests of a trial that count, at least, unless that takes more than three times --seconds",
    )
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of all trials")
    parser.add_argument(
        "--users", type=int, help="users of the closed loop for each device; default: the model's slots"
    )


def plan(options: argparse.Namespace) -> Plan:
    """The plan that the flags give."""
    names = ("settle", "seconds", "requests", "budget")
    return Plan(bounds=sorted(options.ttfb_ms), **{name: getattr(options, name) for name in names})


def device_count(devices: str) -> int:
    """The number of devices in a list such as `0,1` or `cpu:2`, or of those that a server takes with `auto`."""
    if devices == "auto":
        return max(1, visible_gpus())
    return sum(int(one.removeprefix("cpu:")) if one.startswith("cpu:") else 1 for one in devices.split(","))


def model_info(target: str) -> ModelInfo:
    with Client(target) as client:
        return client.model_info()


def utterance(options: argparse.Namespace, info: ModelInfo) -> float:
    """Seconds of audio of a request."""
    return options.steps * info.samples_per_step / info.output_sample_rate


def conditions(options: argparse.Namespace, info: ModelInfo) -> dict[str, Any]:
    """The part of the table that holds the conditions of the run."""
    return {
        "command": command(),
        "run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions("torch", "triton", "grpcio") | {"dtype": info.dtype},
        "slots": info.max_slots,
        "steps": options.steps,
        "timesteps": options.timesteps,
        "chars": options.chars,
        "utterance_s": utterance(options, info),
        "settle_s": options.settle,
        "seconds": options.seconds,
        "clients": options.clients,
    }


def printed(measured: Iterable[Row]) -> list[Row]:
    """Print each row as soon as it is measured, and return them all."""
    kept = []
    for row in measured:
        print(rows.line(row), flush=True)
        kept.append(row)
    return kept
