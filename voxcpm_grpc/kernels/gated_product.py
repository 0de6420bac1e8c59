"""Gate, up and SwiGLU of a transformer layer in one product on Hopper's matrix and copy units.

It serves from about a hundred rows on, where products in Triton's tiles, powers of two, are slower than a library's.
Sizes and units: see `cuda/gated_product.cu`.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from enum import IntEnum

import torch
import triton
from torch import Tensor

from voxcpm_grpc.kernels.cuda.compiler import Function, Shape, compile_cuda, load_function
from voxcpm_grpc.kernels.cuda.tensor_map import TensorMap, matrix_map, tensor_map
from voxcpm_grpc.kernels.cuda.wgmma import multiply_function
from voxcpm_grpc.kernels.launch import multiprocessors
from voxcpm_grpc.kernels.spare_rows import empty_rows

SOURCE, NAME = "gated_product.cu", "gated_product"
DEPTH = 64  # inputs of a slab
MULTIPROCESSOR_BYTES, RESERVED_BYTES = 228 << 10, 1 << 10  # shared memory; the part of each block that CUDA takes


class Share(IntEnum):
    """The operand that two blocks copy together, by the kernel's numbers."""

    NOTHING = 0
    WEIGHTS = 1
    ROWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The division of a launch: tiles of `weights` x `rows`, and `stages` slabs of them in shared memory.

    `resident` blocks fit on a multiprocessor.
    """

    weights: int
    rows: int
    stages: int
    share: Share = Share.NOTHING
    resident: int = 1

    def __post_init__(self) -> None:
        if self.weights not in (64, 128, 256) or self.rows % 8 or not 8 <= self.rows <= 256 or self.stages < 2:
            raise ValueError(f"the kernel cannot be cut as {self}")
        if (self.share is Share.WEIGHTS and self.weights == 64) or (self.share is Share.ROWS and self.rows % 16):
            raise ValueError(f"the halves of what is shared must be 64 weights or 8 rows or a multiple, not {self}")
        limit = MULTIPROCESSOR_BYTES // self.resident - RESERVED_BYTES
        if self.ring + self._declared > limit:
            raise ValueError(f"{self} needs {self.ring + self._declared} bytes of shared memory, the limit is {limit}")

    @property
    def groups(self) -> int:
        """Groups of four warps that multiply."""
        return 1 if self.weights == 64 else 2

    @property
    def threads(self) -> int:
        return 128 * (self.groups + 1)

    @property
    def ring(self) -> int:
        """Bytes of dynamic shared memory: the slots, at a multiple of 1024."""
        return 1024 + self.stages * (self.weights + self.rows) * 2 * DEPTH

    @property
    def _declared(self) -> int:
        return 4096 * self.groups + 8 * self.rows + 16 * self.stages + 32

    @property
    def cluster(self) -> tuple[int, int, int]:
        return (1 + (self.share is Share.ROWS), 1 + (self.share is Share.WEIGHTS), 1)


class _Arguments(ctypes.Structure):
    """The last parameter of the kernel."""

    _fields_ = (
        ("out", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("rows", "inputs", "outputs", "tiles")),
        ("eps", ctypes.c_float),
    )


def gated_product(x: Tensor, eps: float, weight: Tensor, cut: Cut) -> Tensor:
    """Computes `reference.norm_gated` for bfloat16 x [t, c] and weight [2f, c], with spare rows behind the result."""
    (rows, inputs), outputs = x.shape, weight.shape[0] // 2
    if inputs % DEPTH or weight.shape[1] != inputs or weight.shape[0] % (cut.weights * cut.cluster[0]):
        raise ValueError(f"{cut} does not divide {inputs} inputs and {weight.shape[0]} weights")
    for part in (x, weight):
        if part.dtype != torch.bfloat16 or not part.is_contiguous() or part.data_ptr() % 16:
            raise ValueError("x and weight must be contiguous bfloat16 from a multiple of 16 bytes on")
    out = empty_rows(x, rows, outputs)
    tiles, pairs = weight.shape[0] // cut.weights, cut.cluster[0]
    blocks = triton.cdiv(rows, cut.rows * cut.cluster[1]) * cut.cluster[1]
    most = max(multiprocessors(x.device) * cut.resident // blocks // pairs, 1) * pairs
    load_kernel(cut, x.device).launch(
        (min(tiles, most), blocks, 1),
        _weight_map(weight.data_ptr(), outputs, inputs, cut),
        matrix_map(x.data_ptr(), rows, inputs, (cut.rows // pairs, DEPTH)),
        _Arguments(out=out.data_ptr(), rows=rows, inputs=inputs, outputs=outputs, tiles=tiles, eps=eps),
    )
    return out


@functools.cache
def load_kernel(cut: Cut, device: torch.device) -> Function:
    """The kernel of a cut, compiled for the device. Raises KernelUnavailable."""
    shape = Shape(threads=cut.threads, shared=cut.ring, cluster=cut.cluster, early=True)
    return load_function(compile_gated_product(cut), NAME, shape, device)


def compile_gated_product(cut: Cut) -> bytes:
    """Machine code of a cut. Raises KernelUnavailable."""
    constants = {
        "WEIGHTS": cut.weights,
        "ROWS": cut.rows,
        "STAGES": cut.stages,
        "GROUPS": cut.groups,
        "SHARE": int(cut.share),
        "RESIDENT": cut.resident,
    }
    return compile_cuda(SOURCE, constants, before=multiply_function(cut.rows))


def _weight_map(pointer: int, outputs: int, inputs: int, cut: Cut) -> TensorMap:
    """The weights of a group of warps as a box, in the order of `gated_product.cu`.

    Each warp has `eights` x 8 outputs. Its instruction `e` has the gates of the e-th eight and then their ups. The
    dimensions, from the innermost one: input, weight of an eight, gate or up, warp, eight.
    """
    row, eights = 2 * inputs, cut.weights // cut.groups // 64
    sizes = (inputs, 8, 2, outputs // (8 * eights), eights)
    return tensor_map(pointer, sizes, (row, outputs * row, 8 * eights * row, 8 * row), (DEPTH, 8, 2, 4, eights))
