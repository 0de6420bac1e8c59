"""`decode_layers` for the new positions of two, four or eight sequences.

Its kernel divides the inputs of a product, not only the outputs, over the two blocks of a cluster, so that a block
receives half of the values of all rows. The kernel of one row is faster with one.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future
from pathlib import Path
from typing import ClassVar

import torch

from voxcpm_grpc.kernels.cuda import compiler
from voxcpm_grpc.kernels.cuda.compiler import Function, KernelUnavailable, Shape, compile_cuda, load_function
from voxcpm_grpc.models.voxcpm.kernels.decode_layers import (
    BLOCKS,
    HEAD,
    HEADS,
    HIDDEN,
    KV_HEADS,
    THREADS,
    DecodeLayers,
    arguments_type,
)

SOURCE = Path(__file__).with_name("decode_rows.cu")

# rows_block.cuh has the same constants.
CLUSTER, SHARED = 2, 227 * 1024
SLOTS = {2: 6, 4: 5, 8: 4}  # shared memory holds so many slots of weights, for each number of rows
MOST = max(SLOTS)

PACKETS = {
    "x": MOST * HIDDEN // 4,
    "q": MOST * HIDDEN // 4,
    "kv": MOST * 2 * KV_HEADS * HEAD // 4,
    "parts": BLOCKS * HEADS // KV_HEADS * HEAD // 2,
    "mixed": MOST * HIDDEN // 4,
    "gated": MOST * BLOCKS * 8,
}  # packets of 16 bytes


class DecodeRows(DecodeLayers):
    """The layers with one set of weights, and the norm behind them, for as many rows as `SLOTS` has."""

    packets: ClassVar = PACKETS
    counts: ClassVar = ("count", "page_size", "pages", "capacity")
    arguments: ClassVar = arguments_type(counts)

    @staticmethod
    def load(device: torch.device) -> dict[int, Function]:
        """The kernel by the number of rows. Raises KernelUnavailable."""
        return load_kernels(device)


@functools.cache
def load_kernels(device: torch.device) -> dict[int, Function]:
    """The kernel for each number of rows, compiled for the device. Raises KernelUnavailable."""
    compiler.require_hopper(device)
    codes = {rows: compile_rows(rows) for rows in SLOTS}
    shape = Shape(threads=THREADS, shared=SHARED, cluster=(CLUSTER, 1, 1), cooperative=True)
    kernels = {rows: load_function(code, "decode_rows", shape, device) for rows, code in codes.items()}
    if (fit := kernels[MOST].max_active_clusters((BLOCKS, 1, 1))) < BLOCKS // CLUSTER:
        raise KernelUnavailable(f"the device runs {fit} clusters at the same time, the kernel has {BLOCKS // CLUSTER}")
    return kernels


def compile_rows(rows: int) -> Future[bytes]:
    """Start to compile for a number of rows. See `compile_cuda`."""
    return compile_cuda(SOURCE, {"SEQUENCES": rows, "SLOTS": SLOTS[rows]})
