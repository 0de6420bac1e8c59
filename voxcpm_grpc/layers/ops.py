"""The operations of a transformer layer besides attention, and their plain implementation.

Letters: t rows, c hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.attention import RowNorm
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.norm import RMSNorm


@dataclass(frozen=True, slots=True)
class ResidualStream:
    """The stream that the branches of a stack add to, [t, c], and the partial sums of its squares where some were
    left on the way: float32 [parts, t], for a norm that need not read the stream twice. `own`: nobody else knows x,
    so the next sum may take its place."""

    x: Tensor
    squares: Tensor | None = None
    own: bool = False

    def of(self, wanted: range, indices: int) -> ResidualStream:
        """The rows of some of so many indices, where they are: each index has as many rows, one after the other."""
        each = len(self.x) // indices
        return ResidualStream(self.x[wanted.start * each : wanted.stop * each], own=self.own)


class Ops(Protocol):
    def prepare(self, norm: RMSNorm, linear: Linear) -> tuple[RMSNorm, Linear]:
        """At load: the pair as the calls below want it. May overwrite the weights."""
        ...

    def norm_linear(self, stream: ResidualStream, norm: RMSNorm, linear: Linear) -> Tensor:
        """The stream normalized and mapped: [t, outputs]."""
        ...

    def linear_norm(self, stream: ResidualStream, norm: RMSNorm, linear: Linear) -> tuple[Tensor, RowNorm | None]:
        """The same for a reader who can normalize: where that is faster the stream is only mapped, and its norm left
        to the reader, until whose end the stream must stay as it is."""
        ...

    def norm_gated(self, stream: ResidualStream, norm: RMSNorm, gate_up: Linear) -> Tensor:
        """silu(gate) * up of the stream normalized and mapped to both halves: [t, ffn]."""
        ...

    def linear_add(self, x: Tensor, linear: Linear, stream: ResidualStream, scale: float) -> ResidualStream:
        """The stream plus `scale` times what x [t, inputs] is mapped to."""
        ...

    def norm(self, stream: ResidualStream, norm: RMSNorm) -> Tensor:
        """The stream normalized: [t, c]."""
        ...


class TorchOps:
    """The truth: one PyTorch operation after the other."""

    def prepare(self, norm: RMSNorm, linear: Linear) -> tuple[RMSNorm, Linear]:
        return norm, linear

    def norm_linear(self, stream: ResidualStream, norm: RMSNorm, linear: Linear) -> Tensor:
        return linear(norm(stream.x))

    def linear_norm(self, stream: ResidualStream, norm: RMSNorm, linear: Linear) -> tuple[Tensor, RowNorm | None]:
        return self.norm_linear(stream, norm, linear), None

    def norm_gated(self, stream: ResidualStream, norm: RMSNorm, gate_up: Linear) -> Tensor:
        gate, up = gate_up(norm(stream.x)).chunk(2, dim=-1)
        return F.silu(gate) * up

    def linear_add(self, x: Tensor, linear: Linear, stream: ResidualStream, scale: float) -> ResidualStream:
        mixed = linear(x)
        return ResidualStream(stream.x + (mixed if scale == 1 else mixed * scale))

    def norm(self, stream: ResidualStream, norm: RMSNorm) -> Tensor:
        return norm(stream.x)
