"""The GPUs that a server may use, counted without PyTorch."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import runpy
import subprocess
import sys
from pathlib import Path

logger = logging.getLogger(__name__)

DRIVER = "libcuda.so.1"
COUNT_SECONDS = 60.0  # seconds for the driver, which is slow on a host of many GPUs that nothing uses


def visible_gpus() -> int:
    """The number of GPUs as CUDA counts them: those that CUDA_VISIBLE_DEVICES leaves, and one for a MIG instance.

    0 without a driver of NVIDIA, or if PyTorch is absent or was built without CUDA. Blocks for up to seconds.

    A process of its own asks the driver, which would stay in this one with threads and memory.
    """
    if not pytorch_has_cuda():
        return 0
    try:
        command = [sys.executable, "-I", str(Path(__file__))]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=COUNT_SECONDS, check=True).stdout
        return int(answer)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        logger.warning("the GPUs of this host cannot be counted (%s); devices auto takes one engine", error)
        return 0


def pytorch_has_cuda() -> bool:
    """True if the installed PyTorch can use a GPU. Its import would take seconds."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return False
    try:
        return runpy.run_path(str(Path(found.submodule_search_locations[0]) / "version.py")).get("cuda") is not None
    except OSError:
        return False


def initialize() -> int:
    """Initialize the driver in this process, which takes up to seconds. Returns the number of its GPUs."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return 0
    count = ctypes.c_int()
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


if __name__ == "__main__":
    print(initialize())
