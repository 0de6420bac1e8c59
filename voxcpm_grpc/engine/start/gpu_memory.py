"""The memory of a GPU that other programs hold, for the error of an engine that does not fit beside them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from voxcpm_grpc.errors import StartupError

QUERY = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits")
QUERY_SECONDS = 10.0
CONTEXT = 600 << 20  # bytes of the CUDA context and of libraries, which PyTorch does not count
NOTABLE = 1 << 30  # bytes; less may be the kernels and workspaces of this process
GIB = 2**30
REMEDY = "stop them, or leave this GPU out with --devices"


@contextmanager
def fitting(device: torch.device, weights: int) -> Iterator[None]:
    """Turn an error for lack of GPU memory inside the block into one for the operator. Raises StartupError.

    weights: bytes of the weights, the least that the engine needs
    """
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if device.type != "cuda" or "out of memory" not in str(error):
            raise
        raise StartupError(
            f"the engine does not fit on {gpu_name(device)}: its weights alone need {weights / GIB:.1f} GiB, and "
            f"{_free(device)} free; {others_on(device) or 'use a GPU with more memory, or lower engine.max_slots'}"
        ) from error


def gpu_name(device: torch.device) -> str:
    """A GPU with its number and model."""
    return f"GPU {device.index} ({torch.cuda.get_device_name(device)})"


def others_on(device: torch.device) -> str:
    """A clause with the programs that hold memory of a GPU, and the remedy; empty if there are none.

    In a container, programs outside it are not named.
    """
    programs = _programs(device)
    try:
        free, total = torch.cuda.mem_get_info(device)
        held = total - free - torch.cuda.memory_reserved(device) - CONTEXT
    except RuntimeError:  # not even a context fits
        held = sum(size for _, _, size in programs) or torch.cuda.get_device_properties(device).total_memory
    if held < NOTABLE:
        return ""
    if sum(size for _, _, size in programs) > held + CONTEXT:  # in some containers this process has another id there
        programs = []
    named = ", ".join(f"{name} (process {pid}, {size / GIB:.1f} GiB)" for name, pid, size in programs)
    return f"other programs hold {held / GIB:.1f} GiB of it{': ' + named if named else ''}; {REMEDY}"


def _free(device: torch.device) -> str:
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:
        return "nothing is"
    return f"{free / GIB:.1f} of {total / GIB:.1f} GiB are"


def _programs(device: torch.device) -> list[tuple[str, int, int]]:
    """The other programs on a GPU by their name, process id and bytes, as far as the driver tells them."""
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    uuid = str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-")
    found: list[tuple[str, int, int]] = []
    for line in answer.splitlines():
        gpu, pid, *name, size = (part.strip() for part in line.split(","))
        if gpu.removeprefix("GPU-") == uuid and size.isdecimal() and int(pid) != os.getpid():
            found.append((",".join(name), int(pid), int(size) << 20))
    return sorted(found, key=lambda one: -one[2])
