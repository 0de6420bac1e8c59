"""The definition of each kernel for the state of slots in plain PyTorch, with the same name and signature.

Imports no Triton. Dimensions: b streams of a step, n slots, m positions, q codes of a step, v ids of first codes, h
width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def store_codes(
    slot: Tensor,
    codes: Tensor,
    hidden: Tensor,
    end: int,
    *,
    first: Tensor,
    step: Tensor,
    kept: Tensor,
    seen: Tensor,
    current: Tensor,
    stop: Tensor,
    finite: Tensor,
) -> None:
    """Store the codes [b, q] of a step of slots [b], which were drawn from the states [b, h].

    Of all slots: the entry of the first step and the step, int64 [n]; `kept` int16 [n, m, q] gets the codes at the
    entry of the step, or at the last one; `seen` bool [n, v] and `current` int64 [n, q] get them, too; `stop` bool [n]
    says whether the first code is `end`, and `finite` bool [n] whether all of the state is.
    """
    entry = (first[slot] + step[slot]).clamp(max=kept.shape[1] - 1)
    kept.flatten(0, 1).index_copy_(0, slot * kept.shape[1] + entry, codes.to(torch.int16))
    seen.flatten().index_fill_(0, slot * seen.shape[1] + codes[:, 0], True)
    current.index_copy_(0, slot, codes)
    stop.index_copy_(0, slot, codes[:, 0] == end)
    finite.index_copy_(0, slot, hidden.isfinite().all(-1))


def store_hidden(slot: Tensor, hidden: Tensor, kept: Tensor, position: Tensor, step: Tensor) -> None:
    """Store the states [b, h] of slots [b] in `kept` [n, h], and count the position and the step, int64 [n].

    The counters of the last slot, which is scratch, stay as they are.
    """
    kept.index_copy_(0, slot, hidden)
    running = slot != len(kept) - 1
    for counter in (position, step):
        counter.index_copy_(0, slot, counter[slot] + running)
