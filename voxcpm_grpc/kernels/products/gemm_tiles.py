"""The tiles of `skinny_gemm` for each number of rows and size, measured on one H200 on whole stacks in CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

import triton

from voxcpm_grpc.kernels.launch.counters import COUNT
from voxcpm_grpc.kernels.products.skinny_gemm import Tile


class Epilogue(Enum):
    """The operation that follows the product."""

    NONE = auto()
    GATED = auto()
    ADD = auto()


# An entry has the maximum rows and the tiles. With more rows than the last entry's, cuBLAS is as fast.
Tiles = tuple[tuple[int, Mapping[Epilogue, Tile]], ...]

# With up to 32 rows the weights are the first operand of the matrix unit, whose side is 64, and the input is the
# second, whose side is a multiple of 8, so that less of it is padding.
_NARROW: Tiles = (
    (
        16,
        {
            Epilogue.NONE: Tile(rows=16, columns=64, depth=128, stages=5, swap=True),
            Epilogue.GATED: Tile(rows=16, columns=32, depth=128, stages=8, swap=True, ahead=8),
            Epilogue.ADD: Tile(rows=16, columns=64, depth=128, splits=4, stages=5, swap=True, ahead=4),
        },
    ),
    (
        32,
        {
            Epilogue.NONE: Tile(rows=32, columns=64, depth=128, stages=5, swap=True, ahead=16),
            Epilogue.GATED: Tile(rows=32, columns=32, depth=128, stages=5, swap=True, ahead=8),
            Epilogue.ADD: Tile(rows=64, columns=32, depth=128, splits=4, stages=5, ahead=8),
        },
    ),
    (
        64,
        {
            Epilogue.NONE: Tile(rows=64, columns=32, depth=128, stages=5, ahead=16),
            Epilogue.GATED: Tile(rows=64, columns=32, depth=128, ahead=8),
            Epilogue.ADD: Tile(rows=64, columns=32, depth=128, splits=4, stages=5, ahead=8),
        },
    ),
    (
        128,
        {
            Epilogue.NONE: Tile(rows=64, columns=64, depth=128),
            Epilogue.GATED: Tile(rows=64, columns=64, depth=64, stages=5),
            Epilogue.ADD: Tile(rows=64, columns=32, depth=128, splits=2, stages=5),
        },
    ),
    (
        192,
        {
            Epilogue.NONE: Tile(rows=64, columns=64, depth=128),
            Epilogue.ADD: Tile(rows=64, columns=64, depth=128, splits=2),
        },
    ),
)
_WIDE: Tiles = (
    (
        16,
        {
            Epilogue.NONE: Tile(rows=16, columns=64, depth=128, stages=8, swap=True, ahead=16),
            Epilogue.GATED: Tile(rows=16, columns=32, depth=128, stages=5, swap=True, ahead=8),
            Epilogue.ADD: Tile(rows=16, columns=64, depth=256, splits=4, swap=True, ahead=8),
        },
    ),
    (
        32,
        {
            Epilogue.NONE: Tile(rows=32, columns=64, depth=128, stages=5, swap=True),
            Epilogue.GATED: Tile(rows=32, columns=64, depth=128, swap=True),
            Epilogue.ADD: Tile(rows=32, columns=64, depth=128, splits=4, stages=5, swap=True, ahead=8),
        },
    ),
    (
        64,
        {
            Epilogue.NONE: Tile(rows=64, columns=32, depth=128, stages=5),
            Epilogue.GATED: Tile(rows=64, columns=64, depth=64, stages=7),
            Epilogue.ADD: Tile(rows=64, columns=32, depth=128, splits=2, stages=5, ahead=8),
        },
    ),
)

# These serve the sizes below, outputs and inputs, which layers of Qwen3-TTS alone have. They load more inputs at a time
# than those above, because with these sizes a program has fewer of them.
_DEEP_SIZES: Mapping[Epilogue, frozenset[tuple[int, int]]] = {
    Epilogue.NONE: frozenset({(4096, 1024), (2048, 1024), (4096, 2048)}),
    Epilogue.GATED: frozenset({(3072, 1024)}),
    Epilogue.ADD: frozenset({(1024, 3072)}),
}
_DEEP: Tiles = (
    (
        16,
        {
            Epilogue.NONE: Tile(rows=16, columns=64, depth=256, swap=True, ahead=8),
            Epilogue.GATED: Tile(rows=16, columns=32, depth=256, swap=True, ahead=8),
            Epilogue.ADD: Tile(rows=16, columns=32, depth=256, splits=4, stages=6, ahead=8),
        },
    ),
    (
        32,
        {
            Epilogue.NONE: Tile(rows=32, columns=64, depth=256, swap=True, ahead=8),
            Epilogue.GATED: Tile(rows=32, columns=32, depth=256, swap=True, ahead=8),
            Epilogue.ADD: Tile(rows=32, columns=32, depth=128, splits=4, stages=6, ahead=8),
        },
    ),
    (
        64,
        {
            Epilogue.NONE: Tile(rows=64, columns=32, depth=256, ahead=8),
            Epilogue.GATED: Tile(rows=64, columns=32, depth=128, ahead=8),
            Epilogue.ADD: Tile(rows=64, columns=32, depth=128, splits=4, ahead=8),
        },
    ),
)

# These serve weights of 8 bits, of all sizes. With more rows a conversion and cuBLAS's products are faster.
_FP8: Tiles = (
    (
        16,
        {
            Epilogue.NONE: Tile(rows=16, columns=32, depth=256, splits=4, ahead=8),
            Epilogue.GATED: Tile(rows=16, columns=16, depth=256, ahead=8),
            Epilogue.ADD: Tile(rows=16, columns=32, depth=256, splits=4, ahead=8),
        },
    ),
    (
        32,
        {
            Epilogue.NONE: Tile(rows=32, columns=32, depth=128, splits=4, stages=6, ahead=8),
            Epilogue.GATED: Tile(rows=32, columns=32, depth=128, stages=5, swap=True, ahead=8),
            Epilogue.ADD: Tile(rows=64, columns=64, depth=128, splits=4, stages=5),
        },
    ),
    (
        64,
        {
            Epilogue.NONE: Tile(rows=64, columns=64, depth=256, splits=2, stages=3, swap=True, ahead=8),
            Epilogue.GATED: Tile(rows=64, columns=32, depth=128, stages=5, swap=True, ahead=8),
            Epilogue.ADD: Tile(rows=64, columns=64, depth=256, splits=4, stages=3, swap=True, ahead=8),
        },
    ),
    (128, {Epilogue.GATED: Tile(rows=128, columns=64, depth=128, stages=3, warps=8, swap=True)}),
    (256, {Epilogue.GATED: Tile(rows=256, columns=64, depth=64, warps=8, swap=True)}),
)


def choose_tile(epilogue: Epilogue, rows: int, outputs: int, inputs: int, fp8: bool = False) -> Tile | None:
    """The tile for a product of `rows` rows of `inputs` values with `outputs` outputs.

    None if cuBLAS is faster or no tile fits the sizes.
    """
    deep = (outputs, inputs) in _DEEP_SIZES[epilogue]
    table = _FP8 if fp8 else _DEEP if deep else _NARROW if min(outputs, inputs) <= 1024 else _WIDE
    tile = next((tiles.get(epilogue) for limit, tiles in table if rows <= limit), None)
    if tile is None or outputs % tile.columns or inputs % (tile.depth * tile.splits):
        return None
    return tile if outputs // tile.columns * triton.cdiv(rows, tile.rows) <= COUNT else None
