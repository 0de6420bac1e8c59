"""Loads an engine from its settings: device, dtypes, model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch

from voxcpm_grpc import lora_files
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.engine.start.compilation import Compilation, cache_folder
from voxcpm_grpc.engine.start.device import default_slots, select_device, select_dtype
from voxcpm_grpc.engine.start.gpu_memory import fitting
from voxcpm_grpc.errors import InvalidRequest, StartupError
from voxcpm_grpc.machine.memory import MOST_BLOCK, keep_freed_memory
from voxcpm_grpc.models.base import AdapterOptions, LoadOptions
from voxcpm_grpc.models.families import family_of
from voxcpm_grpc.models.loading import load_model
from voxcpm_grpc.models.loading import prepare_all as prepare_all
from voxcpm_grpc.settings.engine import DEFAULT_LORAS, OF_FAMILIES, EngineSettings

SMALL_MODEL = 64 << 20  # bytes of weights
KEPT_BYTES = 256 << 20  # bytes of memory that the process keeps from step to step
LEAST_COMPILED = 16 << 20  # bytes of weights; a compilation of a smaller model, of tests, takes longer than it saves
PASSED = {option.name for option in fields(LoadOptions)} & EngineSettings.model_fields.keys() - {
    *("device", "dtype", "codec_dtype", "max_slots", "recorded_noise")  # these values are converted
}
"""The settings that a model gets as they are."""
WEIGHTS = {".safetensors", ".bin", ".pth"}


def load_engine(
    directory: Path,
    name: str,
    settings: EngineSettings,
    *,
    engines: int = 1,
    fingerprint: Callable[[], str] | None = None,
    restarted: bool = False,
    registers_loras: bool = False,
) -> Engine:
    """The engine of a checkpoint directory, one of `engines` that share the CPU of the host.

    `fingerprint` waits for the fingerprint of the checkpoint, if it is computed already.
    An engine that is `restarted`, so that requests wait for it, captures a part of its CUDA graphs after the warm-up.
    With `registers_loras` it may get adapters while it runs, if models of its family take them.
    Only the calling thread may use the engine: its device becomes the current device of the thread. The process keeps
    freed memory from then on, and tokenizers start no threads. Raises StartupError with the remedy.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would wait for batches, which none sends
    keep_freed_memory(block=MOST_BLOCK, unused=KEPT_BYTES)
    known = _check_settings(directory, settings)
    device = select_device(settings.device)
    dtype = select_dtype(settings.dtype, device)
    _check_dtypes(settings, device, dtype)
    size = _weights(directory)
    threads = settings.threads or (1 if size < SMALL_MODEL else None)
    if threads is None and engines > 1:
        threads = max(1, torch.get_num_threads() // engines)
    if threads is not None:
        torch.set_num_threads(threads)
    options = LoadOptions(
        device=device,
        dtype=dtype,
        max_slots=settings.max_slots or default_slots(device),
        name=name,
        fingerprint=fingerprint,
        recorded_noise=_read_noise(settings.recorded_noise),
        adapters=_adapter_options(settings, registers=registers_loras and "max_loras" in known),
        compiled=cache_folder() if device.type == "cpu" and _compiles(settings, size) else None,
        codec_dtype=None if settings.codec_dtype == "auto" else getattr(torch, settings.codec_dtype),
        **{name: getattr(settings, name) for name in PASSED},
    )
    with fitting(device, size):
        model = load_model(directory, options)
    graphs = settings.graphs and device.type == "cuda" and model.capturable
    if graphs:
        _require_bindings()
    with fitting(device, size):
        engine = Engine(model, settings, device, graphs=graphs, some_graphs_later=restarted)
    if model.compile_command and options.compiled:
        engine.compilation = Compilation(model.compile_command, options.compiled)
    _read_loras(engine, settings)
    return engine


def _check_settings(directory: Path, settings: EngineSettings) -> frozenset[str]:
    """The settings that the family of the model has. Raises StartupError if another one is set."""
    family, _ = family_of(directory)
    given, default = settings.model_dump(), EngineSettings().model_dump()
    if name := next((name for name in sorted(OF_FAMILIES - family.settings) if given[name] != default[name]), ""):
        raise StartupError(f"engine.{name} is set, and models of {family.name} do not have it; leave it out")
    return family.settings


def _check_dtypes(settings: EngineSettings, device: torch.device, dtype: torch.dtype) -> None:
    """Raise StartupError if this device, or a model of this dtype, cannot compute as the settings want."""
    if settings.codec_dtype == "float16" and device.type == "cpu":
        raise StartupError("engine.codec_dtype float16 needs a GPU; a CPU decodes audio in float32")
    if settings.quantization != "none" and dtype != torch.bfloat16:
        raise StartupError(
            f"engine.quantization {settings.quantization} needs a Hopper GPU and engine.dtype bfloat16; this engine "
            f"computes in {str(dtype).removeprefix('torch.')} on {device}; set engine.quantization to none"
        )


def _adapter_options(settings: EngineSettings, *, registers: bool) -> AdapterOptions | None:
    banks = settings.max_loras
    if banks is None:
        banks = DEFAULT_LORAS if settings.loras or registers else 0
    if settings.loras and not banks:
        raise StartupError("engine.loras names adapters and engine.max_loras is 0; set it to 1 or more")
    return AdapterOptions(banks, settings.max_lora_rank, frozenset(settings.lora_targets)) if banks else None


def _read_loras(engine: Engine, settings: EngineSettings) -> None:
    """Read the adapters of the settings. Raises StartupError."""
    for adapter in lora_files.adapters_of(settings.loras):
        try:
            engine.adapters.read_now(adapter)
        except InvalidRequest as error:
            raise StartupError(error.message) from None


def _weights(directory: Path) -> int:
    """Bytes of the files of weights. A model below SMALL_MODEL runs on one thread by default.

    Operations of microseconds gain nothing from more threads, and take the time slice of another process longer
    whenever one of the threads has to wait for it.
    """
    return sum(path.stat().st_size for path in directory.glob("*") if path.suffix in WEIGHTS)


def _compiles(settings: EngineSettings, size: int) -> bool:
    """True if parts of a model with so many bytes of weights are compiled for later starts."""
    if settings.compile == "auto":
        return LEAST_COMPILED <= size < SMALL_MODEL
    return settings.compile == "on"


def _require_bindings() -> None:
    try:
        import cuda.bindings.runtime as _  # noqa: F401
    except ImportError as error:
        raise StartupError(
            f"engine.graphs needs the package cuda-bindings ({error}); install it, or set engine.graphs to false"
        ) from error


def _read_noise(path: Path | None) -> torch.Tensor | None:
    if path is None:
        return None
    try:
        return torch.from_numpy(np.load(path, allow_pickle=False)).float()
    except (OSError, ValueError, TypeError) as error:
        raise StartupError(f"engine.recorded_noise {path} cannot be read as an array ({error})") from error
