"""Copies from the device to the host that do not wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


class HostCopy:
    """An asynchronous copy of a tensor to the host. `wait` waits for it and returns the array.

    `tensor` is the copy. Work that is launched later on the same stream may read it without a wait.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self.tensor = tensor
        if tensor.is_cuda:
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self.tensor = pinned.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def ready(self) -> bool:
        return self._event is None or self._event.query()

    def wait(self) -> np.ndarray:
        if self._event is not None:
            self._event.synchronize()
        return self.tensor.numpy()


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """The state of a slot on the host, except its pages."""

    entries: Mapping[str, int]  # the keys are names of the state tensors of the family that have entries
    packed: HostCopy  # uint8: the rows of all state tensors, one after another
