"""The interface of an attention backend, and the values that it receives.

Dimensions: t rows of the step (all sequences packed), s sequences, h query heads, g KV heads, d head size, p pages of a
sequence, b independent short sequences of n tokens each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from voxcpm_grpc.kernels.rows.reference import late_norm, rms_norm


@dataclass(frozen=True, slots=True)
class PagedKV:
    """The KV cache of one or more layers: k and v are [layers, pages, page_size, g, d]. Page 0 is scratch."""

    k: Tensor
    v: Tensor

    @property
    def page_size(self) -> int:
        return self.k.shape[2]

    def layers(self, start: int, stop: int) -> PagedKV:
        """A view of some layers, which shares memory with the cache."""
        return PagedKV(self.k[start:stop], self.v[start:stop])


@dataclass(frozen=True, slots=True)
class PagedRows:
    """The rows of a step by sequence, and the pages of their keys and values.

    Row r of sequence i (cu_seqlens[i] <= r < cu_seqlens[i + 1]) has position context[i] - (cu_seqlens[i + 1] - r): the
    rows are the last ones of their context, and position 0 is the first token of the sequence.
    """

    cu_seqlens: Tensor  # [s + 1] int32
    context: Tensor  # [s] int32, positions of the sequence, including the rows of this step
    block_table: Tensor  # [s, p] int32, pages in order; entries past the context are any valid page numbers
    write: Tensor  # [t] int64, page * page_size + offset: the slot of each row's K and V
    max_rows: int  # rows of a sequence, at most
    max_context: int  # positions, at least as many as any context has
    fresh: bool  # no sequence has cached context: the rows of this step are all of its positions


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotation of queries and keys at some positions.

    cos and sin are float32 [t, 1, d / 2], the same for every head. For sequences side by side they are
    [n, 1, 1, d / 2], the same for every sequence.
    """

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate x [t, h, d] or [n, b, h, d] by halves, in float32."""
        a, b = x.float().chunk(2, dim=-1)
        halves = torch.addcmul(a * self.cos, b, self.sin, value=-1), torch.addcmul(b * self.cos, a, self.sin)
        return torch.cat(halves, dim=-1).to(x.dtype)


@dataclass(frozen=True, slots=True)
class RowNorm:
    """The root mean square norm of rows x [t, c], to be applied to a linear map of rows that are not normalized."""

    x: Tensor
    eps: float

    def __call__(self, mapped: Tensor) -> Tensor:
        """The linear map of the normalized rows, [..., h, d], from that of the rows, `mapped`."""
        return late_norm(mapped, self.x, self.eps)


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """The root mean square norms of each head of queries and of keys, with weights [d]."""

    q: Tensor
    k: Tensor
    eps: float

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q [..., h, d] and k [..., g, d] after their norms."""
        return rms_norm(q, self.q, self.eps), rms_norm(k, self.k, self.eps)


def normalized(q: Tensor, k: Tensor, v: Tensor, norm: RowNorm | None) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v after a norm, if there is one."""
    return (q, k, v) if norm is None else (norm(q), norm(k), norm(v))


def rotated(q: Tensor, k: Tensor, rotate: Rotation | None) -> tuple[Tensor, Tensor]:
    """q and k after a rotation, if there is one."""
    return (q, k) if rotate is None else (rotate(q), rotate(k))


class Attention(Protocol):
    """An attention backend. q, k and v may be strided views with contiguous heads. `rotate` applies to q and k."""

    capturable: bool  # `attend` never waits for the host, so it can be recorded in a CUDA graph

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: int,
        kv: PagedKV,
        rows: PagedRows,
        rotate: Rotation | None = None,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """Write k, v [t, g, d] of `layer` to rows.write, and return causal attention of q over each context, [t, h, d].

        q is [t, h, d]. Keys are written after `norms` and rotation; q and k may be overwritten with what their norms
        give. The scale is d**-0.5. Query head j reads KV head j // (h // g).
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

        `norm`, of all rows [n * b, c], is applied to q, k and v first; None: they were computed from normalized rows.
        `wanted` is a range of tokens to compute, and the result is [len(wanted), b, h, d]; None computes all tokens.
        """
        ...
