"""Memory through which numbers of the host reach the device, in one copy for all that a launch needs."""

from __future__ import annotations

from collections import deque
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from voxcpm_grpc.engine.device.rows import flat_sizes
from voxcpm_grpc.engine.device.slots import Slots


def prefill_numbers(slots: Slots, columns: int, prefill_tokens: int) -> int:
    """The most numbers that a prefill of so many positions uploads: its rows, entries, pages and new streams.

    `columns` are those of a row.
    """
    table = slots.state.block_table
    numbers = sum(flat_sizes(prefill_tokens, len(table), columns)) + 3 * prefill_tokens + 2 * table.numel()
    return numbers + slots.opening_size * len(table)


class Staging:
    """Numbers of the host on the device, int64, in memory that stays as long as it suffices.

    Captured prefills read its address, so theirs must suffice for all that they need: `prefill_numbers`.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        """Memory for so many numbers. If an upload needs more, a larger one replaces it."""
        self.memory = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._pinned: deque[_Pinned] = deque()

    def upload(self, *arrays: np.ndarray) -> list[Tensor]:
        """These int64 arrays on the device, one after another from the start of `memory` on, without a wait for it.

        They stay until the next upload, which work that is launched before it does not see.
        """
        sizes = [array.size for array in arrays]
        device, total = self.memory.device, sum(sizes)
        if total > len(self.memory):
            self.memory = torch.zeros(max(total, 2 * len(self.memory)), dtype=torch.int64, device=device)
            self._pinned.clear()
        if device.type == "cpu":
            numbers, pinned = self.memory.numpy(), None
        else:
            pinned = self._free()
            numbers = pinned.numbers
        for array, end in zip(arrays, accumulate(sizes), strict=True):
            numbers[end - array.size : end] = array.ravel()
        if pinned is not None and total:
            self.memory[:total].copy_(pinned.memory[:total], non_blocking=True)
            pinned.copied.record()
        parts = self.memory[:total].split(sizes)
        return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]

    def _free(self) -> _Pinned:
        """Pinned memory that no copy reads any more. It is allocated if all copies are still under way."""
        if not self._pinned or not self._pinned[0].copied.query():
            self._pinned.appendleft(_Pinned(len(self.memory)))
        self._pinned.rotate(-1)
        return self._pinned[-1]


class _Pinned:
    def __init__(self, size: int) -> None:
        self.memory = torch.empty(size, dtype=torch.int64, pin_memory=True)
        self.numbers = self.memory.numpy()
        self.copied = torch.cuda.Event()  # the last copy of it has ended when it is recorded
