"""Reads checkpoint files strictly: a missing, misshapen or unknown tensor is an error that names all of them.

Blank weights stand for a file where only the memory of its networks is asked.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.layers.low_rank import AdapterBanks, LowRank

SHOWN = 10  # a message lists so many names for each kind of fault, with their count


def _ignore() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of one file, taken by name and shape.

    A tensor is rounded to `table` (the dtype that config.json declares) before it is converted to the compute dtype, so
    that the weights of a model declared bfloat16 do not depend on the dtype of the file or of the computation. A
    missing or misshapen tensor is replaced by zeros and recorded; `check` reports all of them at once.
    """

    file: str
    tensors: dict[str, Tensor]  # tensors that are taken are no longer here
    device: torch.device
    dtype: torch.dtype
    table: torch.dtype
    prefix: str = ""
    on_taken: Callable[[], None] = _ignore  # each tensor that is taken or dropped calls it
    banks: AdapterBanks | None = None  # LoRA adapters of the maps of this file have their memory here
    missing: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)

    def scope(self, name: str) -> Weights:
        """The same file, for names that begin with `name` and a dot."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor of this name and shape, on the device and in the compute dtype, in memory of its own."""
        full = self.prefix + name
        tensor = self.tensors.pop(full, None)
        if tensor is None:
            self.missing.append(full)
        elif tuple(tensor.shape) != shape or not tensor.is_floating_point():
            self.misshapen.append(f"{full} is {_shown(tensor)} instead of {list(shape)}")
        else:
            self.on_taken()
            return tensor.to(self.table).to(self.device, self.dtype, copy=True)
        return torch.zeros((), device=self.device, dtype=self.dtype).expand(shape)

    def low_rank(self, outputs: Mapping[str, int], inputs: int) -> LowRank | None:
        """Memory for the adapters of linear maps of one input, by name; None if there is none for them."""
        if self.banks is None:
            return None
        return self.banks.allocate({self.prefix + name: size for name, size in outputs.items()}, inputs)

    def integers(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        """The integers of this name, as many as in `default`, which is the result if the file has none."""
        full = self.prefix + name
        tensor = self.tensors.pop(full, None)
        if tensor is None:
            return tuple(default)
        if tensor.shape != (len(default),) or tensor.is_complex():
            self.misshapen.append(f"{full} is {_shown(tensor)} instead of {[len(default)]}")
            return tuple(default)
        self.on_taken()
        return tuple(tensor.long().tolist())

    def drop(self, *names: str) -> None:
        """Ignore tensors that the file may contain and the model does not use."""
        for name in names:
            if self.tensors.pop(self.prefix + name, None) is not None:
                self.on_taken()


def _shown(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def read_tensors(directory: Path, names: Iterable[str]) -> tuple[Path, dict[str, Tensor]]:
    """The first of these files that exists, and its tensors by name.

    Reads safetensors, and pickles that contain tensors only: a table by name, or such a table under "state_dict".
    Raises StartupError.
    """
    names = tuple(names)
    path = next((directory / name for name in names if (directory / name).is_file()), None)
    if path is None:
        raise StartupError(f"{directory} has no {' or '.join(names)}; download the checkpoint again")
    try:
        if path.suffix == ".safetensors":
            return path, load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # PyTorch's own message advises to run the code of the file
        found = re.search(r"GLOBAL (\S+)", str(error))
        what = f"objects of {found[1]}" if found else "other objects, or no pickle at all"
        raise StartupError(
            f"{path} holds {what} and not tensors alone. It is not read, because the objects of a pickle can run code; "
            "use a checkpoint in safetensors, or convert this one to safetensors where you trust it"
        ) from None
    except Exception as error:  # the operator needs the file's name and the remedy for any of them
        raise StartupError(
            f"{path} cannot be read ({type(error).__name__}: {error}); it is incomplete or not a file of weights, "
            "download it again"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise StartupError(f"{path} does not contain tensors by name; convert it to safetensors or download it again")
    return path, content


def split(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Remove the tensors whose names begin with `prefix`, and return them under the rest of their names."""
    names = [name for name in tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensors.pop(name) for name in names}


def check(*files: Weights) -> None:
    """Raise one StartupError unless all requested tensors were present in their shapes and none is left."""
    faults = []
    for weights in files:
        for names, fault in (
            (weights.missing, "missing"),
            (weights.misshapen, "of the wrong shape or type"),
            (sorted(weights.tensors), "unknown"),
        ):
            if names:
                more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
                listed = ", ".join(names[:SHOWN])
                faults.append(f"{len(names)} tensors of {weights.file} are {fault}: {listed}{more}")
    if faults:
        raise StartupError(
            f"the checkpoint does not fit its config.json: {'; '.join(faults)}. "
            "Take config.json and the weights from the same release"
        )


class BlankWeights(Weights):
    """Weights without values: every tensor exists, in any shape, on the device `meta`, which stores none."""

    def take(self, name: str, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)


def bytes_of(made: object) -> int:
    """Bytes of all tensors in an object and the objects that it holds; tensors with common storage count once."""
    storages = {}
    for tensor in _tensors(made):
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
    return sum(storage.nbytes() for storage in storages.values())


def _tensors(made: object) -> Iterator[Tensor]:
    if isinstance(made, Tensor):
        yield made
        return
    if isinstance(made, (list, tuple)):
        parts: list[object] = [*made]
    elif isinstance(made, dict):
        parts = [*made.values()]
    elif is_dataclass(made):
        parts = [getattr(made, field.name) for field in fields(made)]
    elif type(made).__module__.startswith("voxcpm_grpc."):
        parts = [*getattr(made, "__dict__", {}).values()]
    else:
        return
    for part in parts:
        yield from _tensors(part)
