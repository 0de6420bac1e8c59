"""Residual vector quantization.

Dimensions: n frames, q quantizers, v entries of a codebook, w their width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.layers.weights import Weights

LEAST_USAGE = 1e-5


def codebook(weights: Weights, name: str, size: int, width: int) -> Tensor:
    """The entries [v, w] float32 of a codebook, which a checkpoint has as sums and counts of what chose them."""
    exact = replace(weights, dtype=torch.float32)
    return exact.take(name, size, width) / exact.take("cluster_usage", size).clamp(min=LEAST_USAGE)[:, None]


@dataclass(frozen=True, slots=True)
class Quantizer:
    """Chooses the nearest entries of codebooks, each for what the ones before have left."""

    projection: Tensor  # [w, hidden]
    entries: Tensor  # [q, v, w]
    squares: Tensor  # [q, v], half of the squared lengths of the entries

    @classmethod
    def load(cls, weights: Weights, quantizers: int, unused: int, size: int, width: int, hidden: int) -> Quantizer:
        """Take the first `quantizers` codebooks, and drop `unused` more."""
        books = [weights.scope(f"layers.{number}.codebook") for number in range(quantizers + unused)]
        for number, book in enumerate(books):
            book.drop("initialized", *(("cluster_usage", "embed_sum") if number >= quantizers else ()))
        weights.drop("output_proj.weight")  # only the way back needs it
        entries = torch.stack([codebook(book, "embed_sum", size, width) for book in books[:quantizers]])
        projection = weights.take("input_proj.weight", width, hidden, 1)[..., 0]
        return cls(projection, entries, entries.square().sum(-1) / 2)

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, hidden] float32 -> codes [n, q] int64."""
        rest, codes = F.linear(x, self.projection), []
        for entries, squares in zip(self.entries, self.squares, strict=True):
            code = (squares - rest @ entries.T).argmin(-1)  # the order is that of the distances
            rest = rest - entries[code]
            codes.append(code)
        return torch.stack(codes, dim=1)
