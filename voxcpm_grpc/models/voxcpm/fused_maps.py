"""The maps between the networks of a step in few launches, with the weights of the plain ones."""

from __future__ import annotations

from torch import Tensor

from voxcpm_grpc.kernels import hidden_maps
from voxcpm_grpc.kernels.skinny_gemm import Tile
from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.models.voxcpm.plain_maps import PlainMaps

MOST_ROWS = 64  # that these kernels serve; the library's products serve more
MU_COLUMNS, COLUMNS, DEPTH = 32, 16, 128  # of the tiles


def fused_maps(networks: PlainMaps) -> FusedMaps | None:
    """The maps of `networks` in few launches; None if their sizes are no multiples of the tiles."""
    if networks.fusion is None:
        return None  # the first generation has one mu token
    quantizer = networks.quantize
    heads = networks.lm_to_dit, networks.res_to_dit, networks.stop_proj
    sizes = [(linear, MU_COLUMNS) for linear in heads]
    sizes += [(linear, COLUMNS) for linear in (quantizer.in_proj, quantizer.out_proj)]
    shapes = ((*linear.weight.shape, columns) for linear, columns in sizes)
    divide = all(outputs % columns == 0 and inputs % DEPTH == 0 for outputs, inputs, columns in shapes)
    return FusedMaps(networks) if divide else None


class FusedMaps:
    """The methods of `Networks` of these names. Maps with an adapter are those of `Networks`."""

    def __init__(self, networks: PlainMaps) -> None:
        self._plain = networks

    def conditioning(
        self, slot: Tensor, semantic: Tensor, acoustic: Tensor, adapter: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        plain, tile = self._plain, _tile(len(slot), MU_COLUMNS)
        heads = plain.lm_to_dit, plain.res_to_dit, plain.stop_proj
        if tile is None or any(_adapts(linear, adapter) for linear in heads):
            return plain.conditioning(slot, semantic, acoustic, adapter)
        lm, res, stop = (_with_bias(linear) for linear in heads)
        return hidden_maps.conditioning(slot, semantic, acoustic, lm, res, stop, tile)

    def quantize(self, x: Tensor) -> Tensor:
        quantizer, tile = self._plain.quantize, _tile(len(x), COLUMNS)
        if tile is None:
            return quantizer(x)
        levels = hidden_maps.linear(x, *_with_bias(quantizer.in_proj), tile, scale=quantizer.scale)
        return hidden_maps.linear(levels, *_with_bias(quantizer.out_proj), tile)


def _tile(rows: int, columns: int) -> Tile | None:
    if rows > MOST_ROWS:
        return None
    return Tile(rows=16 if rows <= 16 else 32 if rows <= 32 else 64, columns=columns, depth=DEPTH, ahead=16)


def _adapts(linear: Linear, adapter: Tensor | None) -> bool:
    return adapter is not None and linear.low_rank is not None


def _with_bias(linear: Linear) -> tuple[Tensor, Tensor]:
    assert linear.bias is not None
    return linear.weight, linear.bias
