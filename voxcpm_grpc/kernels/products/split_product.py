"""Products of tens of rows that blocks of a cluster compute together on Hopper, added to the residual stream.

They serve where so few rows would occupy a part of the GPU only, and a product of cuBLAS would need a launch of its own
for the sum: see `split_cuts`. For sizes and units see `cuda/split_product.cu`.
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
from voxcpm_grpc.kernels.cuda.hopper import matrix_map, multiply_function

SOURCE, NAME = SOURCES / "split_product.cu", "split_product"
DEPTH = 64  # inputs of a slab
SHARED = 227 << 10  # bytes of shared memory that a block may have
MOST_SPLITS = 8  # blocks of a cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The division of a launch: `splits` blocks divide the inputs of a tile of `outputs` x `rows` among them.

    Shared memory has room for so many slabs of the weight and of x.
    """

    outputs: int
    rows: int
    splits: int
    weight_slots: int
    x_slots: int

    def __post_init__(self) -> None:
        if self.outputs not in (64, 128) or self.rows % 8 or not 8 <= self.rows <= 256:
            raise ValueError(f"the kernel cannot be cut as {self}")
        if not 2 <= self.splits <= min(MOST_SPLITS, self.rows // 8) or min(self.weight_slots, self.x_slots) < 2:
            raise ValueError(f"the kernel cannot be cut as {self}")
        if 32 * self._share * (self.outputs + 4) > 128 * self.x_slots * self.rows:
            raise ValueError(f"{self} has too few slabs of x for the finished rows")
        needed = self.shared + self._declared
        if needed > SHARED:
            raise ValueError(f"{self} needs {needed} bytes of shared memory, the limit is {SHARED}")

    @property
    def threads(self) -> int:
        return 2 * self.outputs + 32

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory: the slabs, at a multiple of 1024, and the sums from all blocks."""
        slabs = self.weight_slots * self.outputs + self.x_slots * self.rows
        return 1024 + 128 * slabs + 32 * self.outputs * self.splits * -(-self._share // 2)

    @property
    def _share(self) -> int:
        """Groups of eight rows that a block finishes, at most."""
        return -(-self.rows // 8 // self.splits)

    @property
    def _declared(self) -> int:
        return 16 * (self.weight_slots + self.x_slots) + 32


class _Arguments(ctypes.Structure):
    """The last parameter of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("residual", "out", "squares")),
        *((name, ctypes.c_int) for name in ("rows", "outputs")),
        ("scale", ctypes.c_float),
    )


def split_linear_add(
    x: Tensor, weight: Tensor, residual: Tensor, scale: float, cut: Cut, *, in_place: bool = False
) -> tuple[Tensor, Tensor]:
    """Computes `reference.linear_add` in bfloat16, and the `squares` of the result as `skinny_gemm.linear_add` does.

    `in_place`: the result replaces the residual.
    """
    (rows, inputs), outputs = x.shape, len(weight)
    if weight.shape[1] != inputs or outputs % cut.outputs or inputs % DEPTH or inputs < DEPTH * cut.splits:
        raise ValueError(f"{cut} does not divide {inputs} inputs and {outputs} outputs")
    for part in (x, weight, residual):
        if part.dtype != torch.bfloat16 or not part.is_contiguous() or part.data_ptr() % 16:
            raise ValueError("all matrices must be contiguous bfloat16 from a multiple of 16 bytes on")
    out = residual if in_place else torch.empty_like(residual)
    squares = x.new_empty(outputs // cut.outputs, rows, dtype=torch.float32)
    _load(inputs, cut, x.device).launch(
        (outputs // cut.outputs, -(-rows // cut.rows), cut.splits),
        matrix_map(weight.data_ptr(), outputs, inputs, (cut.outputs, DEPTH)),
        matrix_map(x.data_ptr(), rows, inputs, (cut.rows, DEPTH)),
        _Arguments(
            residual=residual.data_ptr(),
            out=out.data_ptr(),
            squares=squares.data_ptr(),
            rows=rows,
            outputs=outputs,
            scale=scale,
        ),
    )
    return out, squares


def load_kernels(cuts: Iterable[tuple[int, Cut]], device: torch.device) -> None:
    """Compile the kernels of these (inputs, cut), beside each other, and load them. Raises KernelUnavailable."""
    compiler.require_hopper(device)
    cuts = list(cuts)
    for cut in cuts:
        compile_split_product(*cut)
    for inputs, cut in cuts:
        _load(inputs, cut, device)


def compile_split_product(inputs: int, cut: Cut) -> Future[bytes]:
    """Start to compile a cut. See `compile_cuda`."""
    constants = {
        "INPUTS": inputs,
        "OUTPUTS": cut.outputs,
        "ROWS": cut.rows,
        "SPLITS": cut.splits,
        "WEIGHT_SLOTS": cut.weight_slots,
        "X_SLOTS": cut.x_slots,
    }
    return compile_cuda(SOURCE, constants, before=multiply_function(cut.rows))


@functools.cache
def _load(inputs: int, cut: Cut, device: torch.device) -> Function:
    shape = Shape(threads=cut.threads, shared=cut.shared, cluster=(1, 1, cut.splits), early=True)
    return load_function(compile_split_product(inputs, cut), NAME, shape, device)
