"""Checkpoint files, read strictly: exactly the tensors that the model asks for, or one error that names the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from voxcpm_grpc.errors import StartupError

SHOWN = 10  # names listed per kind of problem; the count says how many there are


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of one file, handed out by name and shape.

    A tensor is rounded to `table` (the dtype that config.json declares) before it gets the compute dtype, so that a
    model declared bfloat16 keeps its weights whatever they are stored or computed in. What is missing or misshapen
    is remembered, and replaced by zeros, until `check` reports everything at once.
    """

    file: str
    tensors: dict[str, Tensor]  # not taken yet
    device: torch.device
    dtype: torch.dtype
    table: torch.dtype
    prefix: str = ""
    missing: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)

    def scope(self, name: str) -> Weights:
        """The same file, for names that begin with `name` and a dot."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor of this name and shape, on the device, in the compute dtype; its own memory."""
        full = self.prefix + name
        tensor = self.tensors.pop(full, None)
        if tensor is None:
            self.missing.append(full)
        elif tuple(tensor.shape) != shape or not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            self.misshapen.append(f"{full} is {kind} {list(tensor.shape)} instead of {list(shape)}")
        else:
            return tensor.to(self.table).to(self.device, self.dtype, copy=True)
        return torch.zeros((), device=self.device, dtype=self.dtype).expand(shape)

    def drop(self, *names: str) -> None:
        """Accept tensors that may be in the file and are not used."""
        for name in names:
            self.tensors.pop(self.prefix + name, None)


def read_tensors(directory: Path, names: Iterable[str]) -> tuple[Path, dict[str, Tensor]]:
    """The first of these files that exists, and its tensors: safetensors, or a pickle of weights only.

    A pickle holds the tensors by name, or such a table under "state_dict".
    """
    names = tuple(names)
    path = next((directory / name for name in names if (directory / name).is_file()), None)
    if path is None:
        raise StartupError(f"{directory} has no {' or '.join(names)}; download the checkpoint again")
    try:
        if path.suffix == ".safetensors":
            return path, load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a foreign file breaks, the operator needs its name and the remedy
        raise StartupError(
            f"{path} cannot be read ({type(error).__name__}: {error}); it is incomplete or not a file of weights, "
            "download it again"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise StartupError(f"{path} holds no table of tensors by name; convert it to safetensors or download it again")
    return path, content


def check(*files: Weights) -> None:
    """Raise one StartupError unless every tensor asked for was there, of its shape, and none is left over."""
    faults = []
    for weights in files:
        for names, what in (
            (weights.missing, "missing"),
            (weights.misshapen, "of the wrong shape or type"),
            (sorted(weights.tensors), "unknown"),
        ):
            if names:
                more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
                listed = ", ".join(names[:SHOWN])
                faults.append(f"{len(names)} tensors of {weights.file} are {what}: {listed}{more}")
    if faults:
        raise StartupError(
            f"the checkpoint does not fit its config.json: {'; '.join(faults)}. "
            "Take config.json and the weights from the same release"
        )
