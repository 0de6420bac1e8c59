"""Reads LoRA adapters in the official format, checks them against a checkpoint, and merges one into its weights.

An adapter is a directory with `lora_config.json` and `lora_weights.safetensors`. The file of weights has two matrices
for each adapted linear map: `<module>.lora_A` [r, inputs] and `<module>.lora_B` [outputs, r]. The map becomes
`W x + (alpha / r) B (A x)`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from voxcpm_grpc.errors import StartupError

CONFIG, WEIGHTS, LEGACY = "lora_config.json", "lora_weights.safetensors", "lora_weights.ckpt"
MAX_RANK = 128
SHOWN = 10  # names listed for each kind of fault, with their count

STACKS = ("base_lm.", "residual_lm.", "feat_decoder.estimator.")
PROJECTIONS = ("enc_to_lm_proj", "lm_to_dit_proj", "res_to_dit_proj", "fusion_concat_proj")
NEVER = ("base_lm.embed_tokens",)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class LowRank:
    """The update of one linear map: `scale` of the adapter times up @ down."""

    down: Tensor  # A, float32 [r, inputs]
    up: Tensor  # B, float32 [outputs, r]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """An adapter whose matrices all fit the checkpoint."""

    rank: int
    scale: float  # alpha / rank
    updates: Mapping[str, LowRank]  # by the name of the module


def read_adapter(directory: Path, tensors: Mapping[str, Tensor]) -> Adapter:
    """The adapter in `directory`, for the checkpoint with these tensors by name.

    Raises one StartupError that names everything that does not fit.
    """
    if not (directory / WEIGHTS).is_file() and (directory / LEGACY).is_file():
        raise StartupError(
            f"the adapter {directory} has only {LEGACY}. It is not read, because the objects of a pickle can run code; "
            f"load it where you trust it, and save its tensors with safetensors as {WEIGHTS}"
        )
    missing = [name for name in (CONFIG, WEIGHTS) if not (directory / name).is_file()]
    if missing:
        raise StartupError(
            f"the adapter {directory} has no {' and no '.join(missing)}; name the directory that the training wrote"
        )
    rank, alpha = _read_config(directory / CONFIG)
    try:
        content = load_file(directory / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise StartupError(
            f"{directory / WEIGHTS} cannot be read ({error}); it is incomplete or not a safetensors file, copy it again"
        ) from None
    targets = _targets(tensors)
    faults = _faults(content, targets, rank)
    if faults:
        raise StartupError(
            f"the adapter {directory} does not fit this model: {'; '.join(faults)}. Use an adapter that was trained "
            "for this checkpoint"
        )
    modules = sorted(name.removesuffix(".lora_A") for name in content if name.endswith(".lora_A"))
    updates = {
        module: LowRank(content[f"{module}.lora_A"].float(), content[f"{module}.lora_B"].float()) for module in modules
    }
    return Adapter(rank=rank, scale=alpha / rank, updates=updates)


def merge(adapter: Adapter, tensors: dict[str, Tensor], table: torch.dtype) -> None:
    """Add the updates of an adapter to the tensors of a checkpoint, in float32.

    The weights are first rounded to `table`, the dtype that config.json declares, as for a model without an adapter.
    """
    for module, update in adapter.updates.items():
        name = f"{module}.weight"
        tensors[name] = tensors[name].to(table).float() + adapter.scale * (update.up @ update.down)


def _targets(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """The modules that an adapter may change, with their outputs and inputs."""
    modules = {
        name.removesuffix(".weight"): (tensor.shape[0], tensor.shape[1])
        for name, tensor in tensors.items()
        if name.endswith(".weight") and tensor.ndim == 2
    }
    return {
        module: shape
        for module, shape in modules.items()
        if module not in NEVER and (module in PROJECTIONS or module.startswith(STACKS))
    }


def _read_config(path: Path) -> tuple[int, float]:
    """The rank and alpha of an adapter. Raises StartupError."""
    try:
        content: object = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StartupError(f"{path} cannot be read as JSON ({error}); copy it again") from None
    table = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    lora = table.get("lora_config")
    if not isinstance(lora, dict):
        raise StartupError(f"{path} has no table lora_config; write one with r and alpha")
    values = cast("dict[str, Any]", lora)
    rank, alpha = values.get("r", 8), values.get("alpha", 16)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= MAX_RANK:
        raise StartupError(f"r of {path} is {rank!r}; it must be an integer from 1 to {MAX_RANK}")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 <= alpha <= 1e6:
        raise StartupError(f"alpha of {path} is {alpha!r}; it must be a number from 0 to 1000000")
    return rank, float(alpha)


def _faults(content: Mapping[str, Tensor], targets: Mapping[str, tuple[int, int]], rank: int) -> list[str]:
    """A sentence for each kind of fault of the tensors of an adapter."""
    unknown, halves, shapes, dtypes, values = [], [], [], [], []
    for name, tensor in sorted(content.items()):
        module, _, half = name.rpartition(".")
        if module not in targets or half not in ("lora_A", "lora_B"):
            unknown.append(name)
            continue
        other = f"{module}.lora_{'B' if half == 'lora_A' else 'A'}"
        if other not in content:
            halves.append(other)
        outputs, inputs = targets[module]
        wanted = [rank, inputs] if half == "lora_A" else [outputs, rank]
        if list(tensor.shape) != wanted:
            shapes.append(f"{name} is {list(tensor.shape)} instead of {wanted}")
        if tensor.dtype not in DTYPES:
            dtypes.append(f"{name} is {str(tensor.dtype).removeprefix('torch.')}")
        elif not tensor.isfinite().all():
            values.append(name)
    found = (
        (unknown, "belong to no module that an adapter may change"),
        (halves, "are missing"),
        (shapes, "have the wrong shape"),
        (dtypes, "are not float32, bfloat16 or float16"),
        (values, "contain infinities or NaN"),
    )
    faults = [f"{len(names)} tensors {fault}: {_listed(names)}" for names, fault in found if names]
    return faults if content else ["it has no tensors"]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
