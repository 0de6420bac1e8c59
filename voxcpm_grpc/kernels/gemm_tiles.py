"""How `linear` is cut for the rows and sizes at hand, as measured on one H200, whole stacks in CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

import triton

from voxcpm_grpc.kernels.skinny_gemm import Tile

MAX_TILES = 1024  # outputs of one launch that are split: nothing below comes near


class Role(Enum):
    """What follows the product."""

    LINEAR = auto()
    GATED = auto()
    ADD = auto()


Tiles = tuple[tuple[int, Mapping[Role, Tile]], ...]  # up to so many rows; beyond, a library's product is as fast

# With up to 32 rows the weights take the matrix unit's first side, which is 64 wide, and the input its second, which
# comes in eights, so that less of it is padding.
_NARROW: Tiles = (
    (
        16,
        {
            Role.LINEAR: Tile(rows=16, columns=64, depth=128, stages=5, swap=True),
            Role.GATED: Tile(rows=16, columns=32, depth=128, stages=8, swap=True, ahead=8),
            Role.ADD: Tile(rows=16, columns=64, depth=128, splits=4, stages=5, swap=True, ahead=4),
        },
    ),
    (
        32,
        {
            Role.LINEAR: Tile(rows=32, columns=64, depth=128, stages=5, swap=True, ahead=16),
            Role.GATED: Tile(rows=32, columns=32, depth=128, stages=5, swap=True, ahead=8),
            Role.ADD: Tile(rows=64, columns=32, depth=128, splits=4, stages=5, ahead=8),
        },
    ),
    (
        64,
        {
            Role.LINEAR: Tile(rows=64, columns=32, depth=128, stages=5, ahead=16),
            Role.GATED: Tile(rows=64, columns=32, depth=128, ahead=8),
            Role.ADD: Tile(rows=64, columns=32, depth=128, splits=4, stages=5, ahead=8),
        },
    ),
    (
        128,
        {
            Role.LINEAR: Tile(rows=64, columns=64, depth=128),
            Role.GATED: Tile(rows=64, columns=64, depth=64, stages=5),
            Role.ADD: Tile(rows=64, columns=32, depth=128, splits=2, stages=5),
        },
    ),
    (
        192,
        {
            Role.LINEAR: Tile(rows=64, columns=64, depth=128),
            Role.ADD: Tile(rows=64, columns=64, depth=128, splits=2),
        },
    ),
)
_WIDE: Tiles = (
    (
        16,
        {
            Role.LINEAR: Tile(rows=16, columns=64, depth=128, stages=8, swap=True, ahead=16),
            Role.GATED: Tile(rows=16, columns=32, depth=128, stages=5, swap=True, ahead=8),
            Role.ADD: Tile(rows=16, columns=64, depth=256, splits=4, swap=True, ahead=8),
        },
    ),
    (
        32,
        {
            Role.LINEAR: Tile(rows=64, columns=32, depth=128, stages=5),
            Role.GATED: Tile(rows=64, columns=16, depth=128, stages=3),
            Role.ADD: Tile(rows=64, columns=64, depth=128, splits=4, stages=5),
        },
    ),
    (
        64,
        {
            Role.LINEAR: Tile(rows=64, columns=32, depth=128, stages=5),
            Role.GATED: Tile(rows=64, columns=64, depth=128),
            Role.ADD: Tile(rows=64, columns=32, depth=128, splits=2, stages=5),
        },
    ),
)


def choose_tile(role: Role, rows: int, outputs: int, inputs: int) -> Tile | None:
    """The cut for `rows` rows of `inputs` values to `outputs` each, or None where a library's product serves better
    or none of ours fits the sizes."""
    table = _NARROW if min(outputs, inputs) <= 1024 else _WIDE
    tile = next((tiles.get(role) for limit, tiles in table if rows <= limit), None)
    if tile is None or outputs % tile.columns or inputs % (tile.depth * tile.splits):
        return None
    return tile if outputs // tile.columns * triton.cdiv(rows, tile.rows) <= MAX_TILES else None
