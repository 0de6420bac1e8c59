"""Reads LoRA adapters in the official format, checks them against a model, and merges one into its weights.

An adapter is a directory with `lora_config.json` and `lora_weights.safetensors`. The file of weights has two matrices
for each adapted linear map: `<module>.lora_A` [r, inputs] and `<module>.lora_B` [outputs, r]. The map becomes
`W x + (alpha / r) B (A x)`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from voxcpm_grpc.errors import InvalidRequest, StartupError
from voxcpm_grpc.layers.low_rank import AdapterBanks, Update
from voxcpm_grpc.lora_files import CONFIG, WEIGHTS, require
from voxcpm_grpc.models.base import AdapterWeights, LoadOptions, Part

MAX_RANK = 128
SHOWN = 10  # a message lists so many names for each kind of fault, with their count

STACKS = ("base_lm.", "residual_lm.", "feat_decoder.estimator.")
PROJECTIONS = ("enc_to_lm_proj", "lm_to_dit_proj", "res_to_dit_proj", "fusion_concat_proj")
NEVER = ("base_lm.embed_tokens",)
DIFFUSION = ("feat_decoder.", "lm_to_dit_proj", "res_to_dit_proj")  # these modules generate a patch; the rest reads
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_LAYER = r"(base_lm|residual_lm|feat_decoder\.estimator\.decoder)\.layers\.\d+\."
TARGETS: Mapping[str, re.Pattern[str]] = {
    "attention": re.compile(_LAYER + r"self_attn\.[qkvo]_proj"),
    "mlp": re.compile(_LAYER + r"mlp\.(gate|up|down)_proj"),
    "projections": re.compile("|".join(PROJECTIONS)),
}
"""The kinds of maps that adapters by request may change, and their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFiles:
    """The content of an adapter all of whose matrices fit."""

    scale: float  # alpha / rank
    updates: Mapping[str, Update]  # the values are float32, the keys are names of modules


def adapts(targets: frozenset[str]) -> Callable[[str], bool]:
    """A predicate for the names of the maps of these kinds."""
    patterns = [TARGETS[target] for target in sorted(targets)]
    return lambda name: any(pattern.fullmatch(name) for pattern in patterns)


def adapter_banks(options: LoadOptions, device: torch.device) -> AdapterBanks | None:
    """The memory for adapters by request on a device, empty so far; None if there are none."""
    if (adapters := options.adapters) is None:
        return None
    return AdapterBanks(adapters.banks, adapters.rank, adapts(adapters.targets), device, options.dtype)


def read_adapter(directory: Path, banks: AdapterBanks) -> AdapterWeights:
    """The adapter in `directory`, for this memory. Raises InvalidRequest with everything that does not fit."""
    files = _read(directory, banks.maps, banks.rank)
    updates = {
        name: Update(_on_host(update.down, banks), _on_host(update.up * files.scale, banks))
        for name, update in files.updates.items()
    }
    parts = frozenset[Part]("generate" if name.startswith(DIFFUSION) else "advance" for name in updates)
    return AdapterWeights(updates=updates, parts=parts)


def merge(directory: Path, tensors: dict[str, Tensor], table: torch.dtype) -> None:
    """Add the updates of an adapter to the tensors of a checkpoint by name, in float32. Raises StartupError.

    The weights are first rounded to `table`, the dtype that config.json declares, as for a model without an adapter.
    """
    modules = {
        name.removesuffix(".weight"): (tensor.shape[0], tensor.shape[1])
        for name, tensor in tensors.items()
        if name.endswith(".weight") and tensor.ndim == 2
    }
    targets = {module: shape for module, shape in modules.items() if _may_change(module)}
    try:
        files = _read(directory, targets, MAX_RANK)
    except InvalidRequest as error:
        raise StartupError(f"the adapter {directory}: {error.message}") from None
    for module, update in files.updates.items():
        name = f"{module}.weight"
        tensors[name] = tensors[name].to(table).float() + files.scale * (update.up @ update.down)


def _may_change(module: str) -> bool:
    return module not in NEVER and (module in PROJECTIONS or module.startswith(STACKS))


def _on_host(matrix: Tensor, banks: AdapterBanks) -> Tensor:
    """The matrix in the dtype of the device's memory, and where a copy to a GPU does not wait."""
    converted = matrix.to(banks.dtype)
    return converted.pin_memory() if banks.device.type == "cuda" else converted


def _read(directory: Path, targets: Mapping[str, tuple[int, int]], largest: int) -> AdapterFiles:
    """The adapter in `directory`, for targets by name with their outputs and inputs. Raises InvalidRequest."""
    require(directory)
    rank, alpha = _read_config(directory / CONFIG)
    if rank > largest:
        raise InvalidRequest(f"its rank r is {rank} and at most {largest} is allowed; raise engine.max_lora_rank")
    try:
        content = load_file(directory / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise InvalidRequest(
            f"{WEIGHTS} cannot be read ({error}); it is incomplete or not a safetensors file, copy it again"
        ) from None
    faults = _faults(content, targets, rank)
    if faults:
        raise InvalidRequest(
            f"it does not fit this model: {'; '.join(faults)}. Use an adapter that was trained for this checkpoint"
        )
    modules = sorted(name.removesuffix(".lora_A") for name in content if name.endswith(".lora_A"))
    updates = {
        module: Update(content[f"{module}.lora_A"].float(), content[f"{module}.lora_B"].float()) for module in modules
    }
    return AdapterFiles(scale=alpha / rank, updates=updates)


def _read_config(path: Path) -> tuple[int, float]:
    """The rank and alpha of an adapter. Raises InvalidRequest."""
    try:
        content: object = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{CONFIG} cannot be read as JSON ({error}); copy it again") from None
    table = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    lora = table.get("lora_config")
    if not isinstance(lora, dict):
        raise InvalidRequest(f"{CONFIG} has no table lora_config; write one with r and alpha")
    values = cast("dict[str, Any]", lora)
    rank, alpha = values.get("r", 8), values.get("alpha", 16)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= MAX_RANK:
        raise InvalidRequest(f"r of {CONFIG} is {rank!r}; it must be an integer from 1 to {MAX_RANK}")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 <= alpha <= 1e6:
        raise InvalidRequest(f"alpha of {CONFIG} is {alpha!r}; it must be a number from 0 to 1000000")
    return rank, float(alpha)


def _faults(content: Mapping[str, Tensor], targets: Mapping[str, tuple[int, int]], rank: int) -> list[str]:
    """A sentence for each kind of fault of the tensors of an adapter."""
    unknown, unsupported, halves, shapes, dtypes, values = [], [], [], [], [], []
    for name, tensor in sorted(content.items()):
        module, _, half = name.rpartition(".")
        if module not in targets or half not in ("lora_A", "lora_B"):
            by_request = _may_change(module) and half in ("lora_A", "lora_B")
            (unsupported if by_request else unknown).append(name)
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
        (
            unsupported,
            "change maps that the model does not have, or that adapters by request cannot change (add their kind to "
            "engine.lora_targets, or merge the adapter at the start with engine.merge_lora)",
        ),
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
