"""The command, the versions and the hardware of a run, as result files record them. Needs no PyTorch."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from voxcpm_grpc import __version__

ROOT = Path(__file__).parents[2]  # of the repository


def module() -> str:
    """The name after `python -m` with which this process was started."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name.removesuffix(".__main__") if spec else sys.argv[0]


def command() -> str:
    """The command line of this process, as `python -m MODULE ARGUMENTS`."""
    return shlex.join(["python", "-m", module(), *sys.argv[1:]])


def versions(*packages: str) -> dict[str, str]:
    """Versions of this project, of Python and of those of `packages` that are installed, and the device.

    With a GPU, `device` is its name and `driver` the version of its driver. Without one, `device` is the processor.
    """
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
    """GiB in use on the first GPU, by all its processes; None without a GPU."""
    used = _query("memory.used")
    return float(used[0]) / 1024 if used else None


def gpus_busy() -> dict[int, float]:
    """Utilization of each GPU, by its number: the share, 0 to 1, of up to the last second. Empty without a GPU."""
    lines = _output("nvidia-smi", "--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits")
    pairs = [line.split(",") for line in lines.splitlines()]
    return {int(index): float(share) / 100 for index, share in pairs if share.strip().isdecimal()}


def _query(fields: str) -> list[str]:
    line = _output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "0")
    return [part.strip() for part in line.split(",")] if line else []


def _output(*words: str) -> str:
    """The output of a program; empty if the program is missing or fails."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
