"""The attention seam: what a backend receives and what it must do.

Letters: t rows of the step (all sequences packed), s sequences, h query heads, g KV heads, d head size, p pages of a
sequence, b independent short sequences of n tokens each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from voxcpm_grpc.kernels.reference import late_norm


@dataclass(frozen=True, slots=True)
class PagedKV:
    """The KV cache of one or more layers: k and v are [layers, pages, page_size, g, d]. Page 0 is scratch."""

    k: Tensor
    v: Tensor

    @property
    def page_size(self) -> int:
        return self.k.shape[2]

    def layers(self, start: int, stop: int) -> PagedKV:
        """A view of some layers; writing to it writes to the cache."""
        return PagedKV(self.k[start:stop], self.v[start:stop])


@dataclass(frozen=True, slots=True)
class PagedRows:
    """Which rows of a step belong to which sequence, and where their keys live.

    Row r of sequence i (cu_seqlens[i] <= r < cu_seqlens[i + 1]) has position context[i] - (cu_seqlens[i + 1] - r):
    the rows are the last ones of their context, so position 0 is the first token of the sequence.
    """

    cu_seqlens: Tensor  # [s + 1] int32
    context: Tensor  # [s] int32, positions of the sequence, this step's rows included
    block_table: Tensor  # [s, p] int32, pages in order; entries past the context are undefined but valid page numbers
    write: Tensor  # [t] int64, page * page_size + offset: where each row's K and V go
    max_rows: int  # most rows of one sequence
    max_context: int  # largest context (a bound is enough)
    fresh: bool  # no sequence has cached context: this step's K and V are everything


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotation of queries and keys at some positions.

    float32 [t, 1, d / 2], the same for every head; for sequences side by side [n, 1, 1, d / 2], the same for each.
    """

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate x [t, h, d] or [n, b, h, d] by halves, in float32."""
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], dim=-1).to(x.dtype)


@dataclass(frozen=True, slots=True)
class RowNorm:
    """The root mean square norm of rows x [t, c], for what a map made of them before it was applied."""

    x: Tensor
    eps: float

    def __call__(self, mapped: Tensor) -> Tensor:
        """What the normalized rows would have been mapped to, [..., h, d]."""
        return late_norm(mapped, self.x, self.eps)


def normalized(q: Tensor, k: Tensor, v: Tensor, norm: RowNorm | None) -> tuple[Tensor, Tensor, Tensor]:
    return (q, k, v) if norm is None else (norm(q), norm(k), norm(v))


def rotated(q: Tensor, k: Tensor, rotate: Rotation | None) -> tuple[Tensor, Tensor]:
    return (q, k) if rotate is None else (rotate(q), rotate(k))


class Attention(Protocol):
    """q, k and v may be strided views with contiguous heads. `rotate` turns q and k first; None leaves them alone."""

    capturable: bool  # never waits for the host: may be recorded in a CUDA graph

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: int,
        kv: PagedKV,
        rows: PagedRows,
        rotate: Rotation | None = None,
    ) -> Tensor:
        """Store k, v [t, g, d] of `layer` at rows.write, then causal attention of q [t, h, d] over each context.

        Keys are stored after rotation. Scale is d**-0.5; query head j reads KV head j // (h // g). Returns [t, h, d].
        """
        ...

    def attend_full(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotate: Rotation | None = None,
        norm: RowNorm | None = None,
        wanted: range | None = None,
    ) -> Tensor:
        """Bidirectional attention inside each short sequence: q [n, b, h, d], k and v [n, b, g, d] -> [n, b, h, d].

        `norm`, of all rows [n * b, c], is applied to q, k and v first; None: they come of normalized rows. `wanted` are
        the tokens to compute, consecutive, all when None; the result [len(wanted), b, h, d] holds theirs alone.
        """
        ...
