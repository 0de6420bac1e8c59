"""Attention to a window of past frames, which each stream keeps in a ring.

Dimensions: b sequences, n new frames, p past frames of the window, h heads, g KV heads, d head size.

Keys are kept as they are before the rotation, and are rotated relative to the new frames. So angles stay small, however
long a stream is, and its position has no limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Window:
    """The places of a call in the rings of its streams, and what its queries may see."""

    write: Tensor  # [b, min(n, p)] int64: the entries of the rings for the last new frames
    next: Tensor  # [b] int64: the positions after the call
    seen: Tensor  # [b, 1, n, p + n] bool: the entries of the rings, then the new frames
    query: tuple[Tensor, Tensor]  # cosine and sine [n, 1, d / 2]
    key: tuple[Tensor, Tensor]  # [b, p + n, 1, d / 2]


class WindowTable:
    """Finds the windows of calls with n new frames, for a window of p past frames.

    A position counts the frames of a stream up to 2p, and stays below by whole rings: only the next entry and the
    number of filled ones matter.
    """

    def __init__(self, past: int, head_dim: int, theta: float, device: torch.device) -> None:
        self.past = past
        exponent = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
        self._frequency = 1.0 / theta**exponent
        self._ring = torch.arange(past, device=device)

    def at(self, position: Tensor, new: int, dtype: torch.dtype) -> Window:
        """The window of streams at positions [b] int64 for `new` frames. Tables have `dtype`."""
        past, device = self.past, position.device
        fresh = torch.arange(new, device=device)
        age = (position[:, None] - 1 - self._ring) % past + 1  # [b, p], 1 for the newest entry
        place = torch.cat([-age, fresh.expand(len(position), -1)], dim=1)  # [b, p + n], relative to the first new frame
        filled = torch.cat([age <= position[:, None], fresh.new_ones(len(position), new, dtype=torch.bool)], dim=1)
        distance = fresh[:, None] - place[:, None]  # [b, n, p + n]
        seen = (distance >= 0) & (distance <= past) & filled[:, None]
        after = position + new
        kept = min(new, past)
        return Window(
            write=(after[:, None] - kept + fresh[:kept]) % past,
            next=torch.where(after < 2 * past, after, past + after % past),
            seen=seen[:, None],
            query=self._rotation(fresh, dtype),
            key=self._rotation(place, dtype),
        )

    def turns(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine [p + 1, d / 2] float32 that rotate a key by its age in frames, relative to one new frame."""
        cos, sin = self._rotation(-torch.arange(self.past + 1, device=self._ring.device), torch.float32)
        return cos[:, 0].contiguous(), sin[:, 0].contiguous()

    def _rotation(self, place: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angle = (place[..., None, None] * self._frequency).float()
        return angle.cos().to(dtype), angle.sin().to(dtype)


def attend(q: Tensor, keys: Tensor, values: Tensor, window: Window) -> Tensor:
    """q [b, n, h, d], keys and values [b, p + n, g, d], all without rotation -> [b, n, h, d]."""
    q, keys = rotate(q, *window.query), rotate(keys, *window.key)
    q, keys, values = (x.transpose(1, 2) for x in (q, keys, values))
    grouped = q.shape[1] != keys.shape[1]
    return F.scaled_dot_product_attention(q, keys, values, window.seen, enable_gqa=grouped).transpose(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., d] with its first and second half as pairs, rotated by cos and sin [..., d / 2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
