"""From settings to a running engine: which device, which arithmetic, which model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.families import load_model
from voxcpm_grpc.settings.schema import EngineSettings

SMALL_MODEL = 64 << 20  # bytes of weights
WEIGHTS = {".safetensors", ".bin", ".pth"}
DEVICES = {"cuda", "cpu"}
LARGE_GPU = 40 * 10**9  # bytes of memory: room for twice the streams, and as a rule the speed


def load_engine(directory: Path, name: str, settings: EngineSettings, *, engines: int = 1) -> Engine:
    """The engine of a checkpoint directory, one of so many `engines` that share the host's CPU.

    The thread that calls this must be the only one that uses the engine: its device becomes the current one there.
    Raises StartupError, with the remedy, if it cannot be.
    """
    device = _device(settings.device)
    dtype = settings.dtype
    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" else "float32"
    if dtype == "bfloat16" and device.type == "cpu":
        raise StartupError("engine.dtype bfloat16 needs a GPU; a CPU computes in float32 over bfloat16 weights too")
    if settings.codec_dtype == "float16" and device.type == "cpu":
        raise StartupError("engine.codec_dtype float16 needs a GPU; a CPU decodes audio in float32")
    options = LoadOptions(
        device=device,
        dtype=getattr(torch, dtype),
        attention=settings.attention,
        timesteps=settings.timesteps,
        max_slots=settings.max_slots or default_slots(device),
        max_model_len=settings.max_model_len,
        name=name,
        recorded_noise=_recorded(settings.recorded_noise),
        persistent=settings.persistent,
        codec_dtype=None if settings.codec_dtype == "auto" else getattr(torch, settings.codec_dtype),
    )
    model = load_model(directory, options)
    graphs = settings.graphs and device.type == "cuda" and model.capturable
    if graphs:
        _require_bindings()
    threads = settings.threads or _few_threads(directory)
    if threads is None and engines > 1:
        threads = max(1, torch.get_num_threads() // engines)
    if threads is not None:
        torch.set_num_threads(threads)
    return Engine(model, settings, device, graphs=graphs)


def default_slots(device: torch.device) -> int:
    """Streams that a device speaks at once, unless a setting says so."""
    if device.type == "cpu":
        return 8
    return 128 if torch.cuda.get_device_properties(device).total_memory >= LARGE_GPU else 64


def _few_threads(directory: Path) -> int | None:
    """One thread for a small model, None for PyTorch's own choice: operations of microseconds gain nothing from more
    threads, and lose a scheduler's time slice whenever another process holds one of them up."""
    sizes = [path.stat().st_size for path in directory.iterdir() if path.suffix in WEIGHTS]
    return 1 if sum(sizes) < SMALL_MODEL else None


def _device(name: str) -> torch.device:
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
            raise StartupError(f"engine.device is {name!r} and PyTorch sees {count} GPUs; use cpu or another number")
        torch.cuda.set_device(device)  # where kernels are launched, graphs recorded and host memory pinned from now on
        torch.set_float32_matmul_precision("highest")  # float32 means float32, whatever the environment prefers
    return device


def _require_bindings() -> None:
    try:
        import cuda.bindings.runtime as _  # noqa: F401
    except ImportError as error:
        raise StartupError(
            f"engine.graphs needs the package cuda-bindings ({error}); install it, or set engine.graphs to false"
        ) from error


def _recorded(path: Path | None) -> torch.Tensor | None:
    if path is None:
        return None
    try:
        return torch.from_numpy(np.load(path, allow_pickle=False)).float()
    except (OSError, ValueError, TypeError) as error:
        raise StartupError(f"engine.recorded_noise {path} cannot be read as an array ({error})") from error
