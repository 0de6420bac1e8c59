"""The cuts of `split_product` for each number of rows, measured on one H200 on whole layers in CUDA graphs."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch

from voxcpm_grpc.kernels.cuda.compiler import suppress_unavailable
from voxcpm_grpc.kernels.products.split_product import Cut, load_kernels

MULTIPROCESSORS = 132  # the GPU that was measured has so many: all clusters of a launch run at once there

# Each (inputs, outputs) has the fewest rows, and entries of (maximum rows, cut). With fewer rows the tiles of
# `gemm_tiles` are faster, with more rows cuBLAS.
_CUTS: Mapping[tuple[int, int], tuple[int, tuple[tuple[int, Cut], ...]]] = {
    (2048, 1024): (
        33,
        (
            (48, Cut(outputs=64, rows=48, splits=4, weight_slots=8, x_slots=8)),
            (72, Cut(outputs=64, rows=72, splits=5, weight_slots=8, x_slots=8)),
            (88, Cut(outputs=64, rows=88, splits=6, weight_slots=8, x_slots=8)),
            (112, Cut(outputs=64, rows=112, splits=4, weight_slots=8, x_slots=8)),
            (136, Cut(outputs=64, rows=136, splits=5, weight_slots=8, x_slots=8)),
            (160, Cut(outputs=64, rows=160, splits=5, weight_slots=4, x_slots=4)),
            (176, Cut(outputs=64, rows=176, splits=6, weight_slots=4, x_slots=4)),
        ),
    ),
    (4096, 1024): (
        65,
        (
            (72, Cut(outputs=64, rows=72, splits=6, weight_slots=6, x_slots=6)),
            (88, Cut(outputs=64, rows=88, splits=6, weight_slots=6, x_slots=6)),
            (112, Cut(outputs=64, rows=112, splits=6, weight_slots=6, x_slots=6)),
            (136, Cut(outputs=64, rows=136, splits=6, weight_slots=6, x_slots=6)),
            (160, Cut(outputs=64, rows=160, splits=6, weight_slots=6, x_slots=6)),
            (176, Cut(outputs=64, rows=176, splits=6, weight_slots=6, x_slots=6)),
        ),
    ),
    (2048, 2048): (
        17,
        (
            (32, Cut(outputs=128, rows=32, splits=4, weight_slots=8, x_slots=8)),
            (48, Cut(outputs=128, rows=48, splits=4, weight_slots=8, x_slots=4)),
            (64, Cut(outputs=128, rows=64, splits=4, weight_slots=8, x_slots=8)),
        ),
    ),
}
CUTS = tuple((inputs, cut) for (inputs, _), (_, cuts) in _CUTS.items() for _, cut in cuts)


def choose_cut(rows: int, outputs: int, inputs: int, multiprocessors: int) -> Cut | None:
    """The cut for a product of `rows` rows of `inputs` values with `outputs` outputs; None if others are faster."""
    fewest, cuts = _CUTS.get((inputs, outputs), (0, ()))
    if rows < fewest or multiprocessors < MULTIPROCESSORS:
        return None
    return next((cut for limit, cut in cuts if rows <= limit), None)


@functools.cache
def load_cuts(device: torch.device) -> bool:
    """Load the kernels of all cuts. False, with the reason in the log, if they cannot be used on this device."""
    with suppress_unavailable("products of 33 to 176 rows are Triton's or cuBLAS's"):
        load_kernels(CUTS, device)
        return True
    return False
