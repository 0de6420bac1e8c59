"""The projections between the networks of a step, plain and in few launches, with the same weights."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from voxcpm_grpc.kernels.products.skinny_gemm import Tile
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.models.voxcpm.kernels import hidden_projections


class Quantizer(Protocol):
    scale: int
    in_proj: Linear
    out_proj: Linear

    def __call__(self, x: Tensor) -> Tensor: ...


class PlainProjections(Protocol):
    """Members of `Networks`, which describes them."""

    @property
    def fusion(self) -> Linear | None: ...

    @property
    def quantize(self) -> Quantizer: ...

    @property
    def lm_to_dit(self) -> Linear: ...

    @property
    def res_to_dit(self) -> Linear: ...

    @property
    def stop_proj(self) -> Linear: ...

    def conditioning(
        self, slot: Tensor, semantic: Tensor, acoustic: Tensor, adapter: Tensor | None = None
    ) -> tuple[Tensor, Tensor]: ...


MOST_ROWS = 64  # rows that these kernels serve; cuBLAS serves more
MU_COLUMNS, COLUMNS, DEPTH = 32, 16, 128  # the tiles have these sizes


def fused_projections(networks: PlainProjections) -> FusedProjections | None:
    """The maps of `networks` in few launches; None if their sizes are no multiples of the tiles."""
    if networks.fusion is None:
        return None  # the first generation has one mu token
    quantizer = networks.quantize
    heads = networks.lm_to_dit, networks.res_to_dit, networks.stop_proj
    sizes = [(linear, MU_COLUMNS) for linear in heads]
    sizes += [(linear, COLUMNS) for linear in (quantizer.in_proj, quantizer.out_proj)]
    shapes = ((*linear.weight.shape, columns) for linear, columns in sizes)
    divide = all(outputs % columns == 0 and inputs % DEPTH == 0 for outputs, inputs, columns in shapes)
    return FusedProjections(networks) if divide else None


class FusedProjections:
    """The methods of `Networks` of these names. Maps with an adapter are those of `Networks`."""

    def __init__(self, networks: PlainProjections) -> None:
        self._plain = networks

    def conditioning(
        self, slot: Tensor, semantic: Tensor, acoustic: Tensor, adapter: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        plain, tile = self._plain, _tile(len(slot), MU_COLUMNS)
        heads = plain.lm_to_dit, plain.res_to_dit, plain.stop_proj
        if tile is None or any(_adapts(linear, adapter) for linear in heads):
            return plain.conditioning(slot, semantic, acoustic, adapter)
        lm, res, stop = (_with_bias(linear) for linear in heads)
        return hidden_projections.conditioning(slot, semantic, acoustic, lm, res, stop, tile)

    def quantize(self, x: Tensor) -> Tensor:
        quantizer, tile = self._plain.quantize, _tile(len(x), COLUMNS)
        if tile is None:
            return quantizer(x)
        levels = hidden_projections.linear(x, *_with_bias(quantizer.in_proj), tile, scale=quantizer.scale)
        return hidden_projections.linear(levels, *_with_bias(quantizer.out_proj), tile)


def _tile(rows: int, columns: int) -> Tile | None:
    if rows > MOST_ROWS:
        return None
    return Tile(rows=16 if rows <= 16 else 32 if rows <= 32 else 64, columns=columns, depth=DEPTH, ahead=16)


def _adapts(linear: Linear, adapter: Tensor | None) -> bool:
    return adapter is not None and linear.low_rank is not None


def _with_bias(linear: Linear) -> tuple[Tensor, Tensor]:
    assert linear.bias is not None
    return linear.weight, linear.bias
