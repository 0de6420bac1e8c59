"""From the device to the host without waiting."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class HostCopy:
    """A float32 tensor on its way to the host. `ready` asks; `wait` waits for it and returns it."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._tensor = tensor
        if tensor.is_cuda:
            self._tensor = torch.empty(tensor.shape, pin_memory=True).copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def ready(self) -> bool:
        return self._event is None or self._event.query()

    def wait(self) -> np.ndarray:
        if self._event is not None:
            self._event.synchronize()
        return self._tensor.numpy()
