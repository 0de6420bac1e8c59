"""Gate, up and SwiGLU of a transformer layer in one product on Hopper's matrix and copy units.

It serves where products in Triton's tiles, powers of two, are slower than cuBLAS's: see `gated_cuts`. For sizes and
units see `cuda/gated_product.cu`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from voxcpm_grpc.kernels.cuda import compiler
from voxcpm_grpc.kernels.cuda.compiler import SOURCES, Function, Shape, compile_cuda, load_function
from voxcpm_grpc.kernels.cuda.hopper import TensorMap, matrix_map, multiply_function, tensor_map
from voxcpm_grpc.kernels.launch.overlap import multiprocessors
from voxcpm_grpc.kernels.rows.padded_rows import empty_rows

SOURCE, NAME = SOURCES / "gated_product.cu", "gated_product"
DEPTH = 64  # inputs of a slab
PAIR = 2  # blocks that copy weights together
THREADS = 384
MAX_ROWS = 4096  # rows of a product
SHARED = 227 << 10  # bytes of shared memory that a block may have


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The division of a launch: tiles of `weights` x `rows`, and `stages` slabs of them in shared memory."""

    weights: int
    rows: int
    stages: int

    def __post_init__(self) -> None:
        if self.weights not in (128, 256) or self.rows % 8 or not 8 <= self.rows <= 176 or self.stages < 2:
            raise ValueError(f"the kernel cannot be cut as {self}")
        if self.ring + self._declared > SHARED:
            raise ValueError(f"{self} needs {self.ring + self._declared} bytes of shared memory, the limit is {SHARED}")

    def grid(self, rows: int, outputs: int, multiprocessors: int) -> tuple[int, int]:
        """Blocks beside each other in outputs and in rows. All run at once if there are enough multiprocessors."""
        blocks = -(-rows // (PAIR * self.rows)) * PAIR
        return min(2 * outputs // self.weights, max(multiprocessors // blocks, 1)), blocks

    @property
    def ring(self) -> int:
        """Bytes of dynamic shared memory: the slots, at a multiple of 1024."""
        return 1024 + self.stages * (self.weights + self.rows) * 2 * DEPTH

    @property
    def _declared(self) -> int:
        return 8192 + 8 * self.rows + 16 * self.stages + 32


class _Arguments(ctypes.Structure):
    """The last parameter of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out", "x", "packets")),
        *((name, ctypes.c_int) for name in ("rows", "outputs", "tiles")),
        ("eps", ctypes.c_float),
    )


def new_packets(device: torch.device) -> Tensor:
    """Memory in which the blocks of a launch exchange values. Launches that share it must not run at the same time."""
    return torch.zeros(1 + MAX_ROWS, dtype=torch.int64, device=device)


def gated_product(x: Tensor, eps: float, weight: Tensor, packets: Tensor, cut: Cut) -> Tensor:
    """Computes `reference.norm_gated` for bfloat16 x [t, c] and weight [2f, c], with spare rows behind the result.

    `packets` are of `new_packets`.
    """
    (rows, inputs), outputs = x.shape, weight.shape[0] // 2
    if inputs % DEPTH or weight.shape[1] != inputs or weight.shape[0] % cut.weights:
        raise ValueError(f"{cut} does not divide {inputs} inputs and {weight.shape[0]} weights")
    if rows > MAX_ROWS:
        raise ValueError(f"{rows} rows are more than {MAX_ROWS}")
    for part in (x, weight):
        if part.dtype != torch.bfloat16 or not part.is_contiguous() or part.data_ptr() % 16:
            raise ValueError("x and weight must be contiguous bfloat16 from a multiple of 16 bytes on")
    out = empty_rows(x, rows, outputs)
    tiles = weight.shape[0] // cut.weights
    _load(inputs, cut, x.device).launch(
        (*cut.grid(rows, outputs, multiprocessors(x.device)), 1),
        _weight_map(weight.data_ptr(), outputs, inputs, cut),
        matrix_map(x.data_ptr(), rows, inputs, (cut.rows, DEPTH)),
        _Arguments(
            out=out.data_ptr(),
            x=x.data_ptr(),
            packets=packets.data_ptr(),
            rows=rows,
            outputs=outputs,
            tiles=tiles,
            eps=eps,
        ),
    )
    return out


def load_kernels(cuts: Iterable[tuple[int, Cut]], device: torch.device) -> None:
    """Compile the kernels of these (inputs, cut), beside each other, and load them. Raises KernelUnavailable."""
    compiler.require_hopper(device)
    cuts = list(cuts)
    for cut in cuts:
        compile_gated_product(*cut)
    for inputs, cut in cuts:
        _load(inputs, cut, device)


def compile_gated_product(inputs: int, cut: Cut) -> Future[bytes]:
    """Start to compile a cut. See `compile_cuda`."""
    constants = {"INPUTS": inputs, "WEIGHTS": cut.weights, "ROWS": cut.rows, "STAGES": cut.stages}
    return compile_cuda(SOURCE, constants, before=multiply_function(cut.rows))


@functools.cache
def _load(inputs: int, cut: Cut, device: torch.device) -> Function:
    shape = Shape(threads=THREADS, shared=cut.ring, cluster=(1, PAIR, 1), early=True)
    return load_function(compile_gated_product(inputs, cut), NAME, shape, device)


def _weight_map(pointer: int, outputs: int, inputs: int, cut: Cut) -> TensorMap:
    """The weights of a group of warps, half of a tile, as a box, in the order of `gated_product.cu`.

    Each warp has `eights` x 8 outputs. Its instruction `e` has the gates of the e-th eight and then their ups. The
    dimensions, from the innermost one: input, weight of an eight, gate or up, warp, eight.
    """
    row, eights = 2 * inputs, cut.weights // 128
    sizes = (inputs, 8, 2, outputs // (8 * eights), eights)
    return tensor_map(pointer, sizes, (row, outputs * row, 8 * eights * row, 8 * row), (DEPTH, 8, 2, 4, eights))
