"""What a run ran on and with, for the record. Needs no PyTorch."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from voxcpm_grpc import __version__

ROOT = Path(__file__).parent.parent


def command() -> str:
    """What was typed to run the module that runs."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return shlex.join(["python", "-m", spec.name if spec else sys.argv[0], *sys.argv[1:]])


def versions(*packages: str) -> dict[str, str]:
    """Of this project, Python, the GPU and its driver (where there is one), and of `packages` (where installed)."""
    found = {"voxcpm-grpc": __version__}
    if commit := _output("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"):
        found["commit"] = commit
    found["python"] = platform.python_version()
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if gpu := _query("name,driver_version"):
        found["device"], found["driver"] = gpu
    else:
        found["device"] = platform.processor() or platform.machine()
    return found


def gpu_memory_gib() -> float | None:
    """Memory in use on the first GPU, by all its processes; None without one."""
    used = _query("memory.used")
    return float(used[0]) / 1024 if used else None


def gpus_busy() -> dict[int, float]:
    """Share of the last moments, up to a second, that each GPU ran anything, by its number; empty without one."""
    said = _output("nvidia-smi", "--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits")
    pairs = [line.split(",") for line in said.splitlines()]
    return {int(index): float(share) / 100 for index, share in pairs if share.strip().isdecimal()}


def _query(fields: str) -> list[str]:
    line = _output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "0")
    return [part.strip() for part in line.split(",")] if line else []


def _output(*words: str) -> str:
    """What a program prints; empty if it is missing or fails."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
