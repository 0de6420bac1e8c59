"""The operations of a transformer layer besides attention, and their plain implementation.

Dimensions: t rows, c hidden size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.attention import RowNorm
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.weights import Weights


@dataclass(frozen=True, slots=True)
class RMSNorm:
    weight: Tensor | None  # [c]; None: it is included in the weight of the linear map that follows
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize x [..., c] in float32, round to x's dtype, then multiply by the weight."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        normalized = (wide * scale).to(x.dtype)
        return normalized if self.weight is None else normalized * self.weight

    @classmethod
    def load(cls, weights: Weights, name: str, size: int, eps: float) -> RMSNorm:
        return cls(weights.take(f"{name}.weight", size), eps)


@dataclass(frozen=True, slots=True)
class ResidualStream:
    """The residual stream x [t, c], to which the branches of a layer are added.

    `squares`, float32 [parts, t], holds partial sums of the squares of its rows, if a kernel has computed them for the
    next norm. `exclusive` means that x, and the memory behind it in its storage, have no other user, so that the next
    sum may overwrite them. `adapter`, int64 [s], has the banks of the LoRA adapters of s sequences, whose rows stand
    token by token: that of row r is adapter[r % s]. None: the model alone.
    """

    x: Tensor
    squares: Tensor | None = None
    exclusive: bool = False
    adapter: Tensor | None = None

    def select(self, wanted: range, indices: int) -> ResidualStream:
        """A view of the rows of the wanted indices, out of `indices` with equally many consecutive rows each.

        Each index has all sequences of `adapter`.
        """
        each = len(self.x) // indices
        rows = self.x[wanted.start * each : wanted.stop * each]
        return ResidualStream(rows, exclusive=self.exclusive, adapter=self.adapter)


class Ops(Protocol):
    """The operations of a transformer layer besides attention.

    Every linear map includes the adapters of the rows of the stream.
    """

    def prepare(self, norm: RMSNorm, linear: Linear) -> tuple[RMSNorm, Linear]:
        """Convert a norm and the map after it at load, for the other methods. May overwrite the weights."""
        ...

    def prepare_output(self, linear: Linear) -> Linear:
        """Convert the map of a `linear_add` at load."""
        ...

    def norm_linear(self, stream: ResidualStream, norm: RMSNorm, linear: Linear) -> Tensor:
        """The linear map of the normalized stream, [t, outputs]."""
        ...

    def linear_norm(self, stream: ResidualStream, norm: RMSNorm, linear: Linear) -> tuple[Tensor, RowNorm | None]:
        """The linear map of the stream, and the norm that its user must apply to the result; None: it is normalized.

        The stream must not change until the norm has been applied.
        """
        ...

    def norm_gated(self, stream: ResidualStream, norm: RMSNorm, gate_up: Linear) -> Tensor:
        """silu(gate) * up, [t, ffn], where gate and up are linear maps of the normalized stream."""
        ...

    def linear_add(self, x: Tensor, linear: Linear, stream: ResidualStream, scale: float) -> ResidualStream:
        """The stream plus `scale` times the linear map of x [t, inputs]."""
        ...

    def norm(self, stream: ResidualStream, norm: RMSNorm) -> Tensor:
        """The normalized stream, [t, c]."""
        ...


class TorchOps:
    """The reference: separate PyTorch operations."""

    def prepare(self, norm: RMSNorm, linear: Linear) -> tuple[RMSNorm, Linear]:
        return norm, linear

    def prepare_output(self, linear: Linear) -> Linear:
        return linear

    def norm_linear(self, stream: ResidualStream, norm: RMSNorm, linear: Linear) -> Tensor:
        return linear(norm(stream.x), stream.adapter)

    def linear_norm(self, stream: ResidualStream, norm: RMSNorm, linear: Linear) -> tuple[Tensor, RowNorm | None]:
        return self.norm_linear(stream, norm, linear), None

    def norm_gated(self, stream: ResidualStream, norm: RMSNorm, gate_up: Linear) -> Tensor:
        gate, up = gate_up(norm(stream.x), stream.adapter).chunk(2, dim=-1)
        return F.silu(gate) * up

    def linear_add(self, x: Tensor, linear: Linear, stream: ResidualStream, scale: float) -> ResidualStream:
        mixed = linear(x, stream.adapter)
        return replace(stream, x=stream.x + (mixed if scale == 1 else mixed * scale))

    def norm(self, stream: ResidualStream, norm: RMSNorm) -> Tensor:
        return norm(stream.x)
