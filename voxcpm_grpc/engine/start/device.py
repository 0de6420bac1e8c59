"""Selects the device of an engine, what it computes with there, and how a CPU's memory is given back."""

from __future__ import annotations

import logging

import torch

from voxcpm_grpc.errors import StartupError

DEVICES = {"cuda", "cpu"}
LARGE_GPU = 40 * 10**9  # bytes of memory, enough for twice the streams; such a GPU is usually fast enough for them
AMPERE, HOPPER = (8, 0), (9, 0)  # GPUs have these compute capabilities

logger = logging.getLogger(__name__)


def select_device(name: str) -> torch.device:
    """The device called auto, cpu, cuda or cuda:N. A GPU becomes the current one of the thread. Raises StartupError."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in DEVICES:
        raise StartupError(f"engine.device is {name!r}; it may be auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        device = torch.device("cuda", device.index or 0)
        if device.index >= count:
            raise StartupError(f"engine.device is {name!r} and PyTorch finds {count} GPUs; use cpu or another number")
        torch.cuda.set_device(device)  # kernel launches, graphs and pinned host memory need it
        torch.set_float32_matmul_precision("highest")  # TF32 is never used, even if the environment asks for it
    return device


def select_dtype(setting: str, device: torch.device) -> torch.dtype:
    """The data type of the computation: `setting`, or for auto the fastest one that the device has.

    Logs what a GPU lacks. Raises StartupError if the device does not have the data type.
    """
    if device.type == "cpu":
        if setting == "bfloat16":
            raise StartupError(
                "engine.dtype bfloat16 needs a GPU; a CPU computes in float32, also with bfloat16 weights"
            )
        return torch.float32
    capability = torch.cuda.get_device_capability(device)
    lacking = []
    if capability < AMPERE:
        lacking.append("bfloat16, so that it computes in float32 by plain operations")
        if setting == "bfloat16":
            raise StartupError(
                "engine.dtype bfloat16 needs a GPU of compute capability 8.0 or more; this one has "
                f"{'.'.join(map(str, capability))}; use auto or float32"
            )
    if capability < HOPPER:
        lacking.append("kernels that start early, so that they run one after the other")
    if capability != HOPPER:
        lacking.append("the instructions of Hopper, so that cuBLAS's products take the place of some kernels")
    if lacking:
        logger.info(
            "%s, compute capability %d.%d, lacks %s",
            torch.cuda.get_device_name(device),
            *capability,
            "; ".join(lacking),
        )
    if setting == "auto":
        return torch.float32 if capability < AMPERE else torch.bfloat16
    return getattr(torch, setting)


def default_slots(device: torch.device) -> int:
    """The number of streams that a device serves at the same time, unless it is set."""
    if device.type == "cpu":
        return 8
    return 128 if torch.cuda.get_device_properties(device).total_memory >= LARGE_GPU else 64
