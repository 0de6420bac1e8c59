"""The cuts of `gated_product` for each number of rows, measured on one H200 on whole stacks in CUDA graphs."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch

from voxcpm_grpc.kernels.cuda.compiler import suppress_unavailable
from voxcpm_grpc.kernels.products.gated_product import MAX_ROWS, Cut, load_kernels

MANY = (
    Cut(weights=256, rows=112, stages=4),
    Cut(weights=256, rows=136, stages=4),
    Cut(weights=256, rows=160, stages=4),
    Cut(weights=256, rows=176, stages=4),
)
# These are rows of LocDiT with 4, 6, 7, 8, 16 and 24 streams and of LocEnc with 32 and 64, for which the blocks of one
# wave suffice.
FEW: Mapping[int, Cut] = {
    88: Cut(weights=128, rows=48, stages=8),
    132: Cut(weights=128, rows=72, stages=8),
    154: Cut(weights=128, rows=80, stages=8),
    160: Cut(weights=128, rows=80, stages=8),
    176: Cut(weights=128, rows=88, stages=8),
    320: Cut(weights=256, rows=80, stages=5),
    352: Cut(weights=256, rows=88, stages=4),
    528: Cut(weights=256, rows=136, stages=4),
}
CUTS = tuple(dict.fromkeys((*FEW.values(), *MANY)))
SIZES = ((1024, 4096),)  # inputs and outputs of the products that were measured
FEWEST_ROWS = 700  # rows from which on the cuts for many rows serve
LEAST_USE = 0.86  # the rows must use this part of the time of all multiprocessors
OVERHEAD = 32  # a tile takes as long as one of so many more rows whose first slabs and SwiGLU take no time


def choose_cut(rows: int, outputs: int, inputs: int, multiprocessors: int) -> Cut | None:
    """The cut for a product of `rows` rows of `inputs` values with `outputs` outputs; None if others are faster.

    With many rows all blocks of a launch take about as long, so the cut with which a multiprocessor has the least work
    is the fastest. If that is much more than its share, the tiles of cuBLAS, which divide rows otherwise, are
    faster.
    """
    if (inputs, outputs) not in SIZES:
        return None
    if not FEWEST_ROWS <= rows <= MAX_ROWS:
        return FEW.get(rows)

    def tiles(cut: Cut) -> int:
        beside, blocks = cut.grid(rows, outputs, multiprocessors)
        return -(-2 * outputs // (cut.weights * beside)) * -(-beside * blocks // multiprocessors)

    def work(cut: Cut) -> tuple[int, int]:
        return tiles(cut) * cut.weights * (cut.rows + OVERHEAD), tiles(cut)

    best = min(MANY, key=work)
    use = rows * 2 * outputs / (multiprocessors * tiles(best) * best.weights * best.rows)
    return best if use >= LEAST_USE else None


@functools.cache
def load_cuts(device: torch.device) -> bool:
    """Load the kernels of all cuts. False, with the reason in the log, if they cannot be used on this device."""
    with suppress_unavailable("gate and up of many rows are a product of cuBLAS, and the SwiGLU is a launch"):
        load_kernels(((inputs, cut) for inputs, _ in SIZES for cut in CUTS), device)
        return True
    return False
