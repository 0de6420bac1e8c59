"""The definition of the products with adapters in plain PyTorch, with the same names and signatures. Imports no Triton.

Dimensions: t rows, s sequences, h query heads, g KV heads, d head size, p pages of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from voxcpm_grpc.kernels.rows.reference import rms_norm


def add_low_rank(
    out: Tensor,
    x: Tensor,
    adapter: Tensor,
    down: Tensor,
    up: Tensor,
    parts: Sequence[int],
    *,
    norm: Tensor | None = None,
    eps: float | None = None,
    scale: float = 1.0,
) -> None:
    """Add scale * up[p] (down[p] x) to each row of out [t, o], in place, where p is adapter[r % s] of row r.

    adapter is int64 [s], of s sequences whose rows stand token by token. A negative p adds nothing. down
    [banks, parts, r, i] has a map to the low rank r for each of the consecutive parts of the outputs, which have the
    sizes `parts`; up is [banks, o, r]. x [t, i] is first divided by its root mean square if eps is given, and
    multiplied with norm [i] if that is given.
    """
    if eps is not None:
        x = rms_norm(x, None, eps)
    if norm is not None:
        x = x * norm
    adapter = adapter.repeat(len(x) // len(adapter))
    for bank in adapter.unique().tolist():
        if bank < 0:
            continue
        rows = (adapter == bank).nonzero()[:, 0]
        low = linear(x[rows], down[bank].flatten(0, 1)).split(down.shape[2], dim=1)
        made = [linear(each, matrix) for each, matrix in zip(low, up[bank].split(list(parts)), strict=True)]
        out.index_add_(0, rows, torch.cat(made, dim=1), alpha=scale)
