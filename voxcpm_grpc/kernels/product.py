"""Matrix products of activations with large weights on Hopper's own matrix and copy units, in CUDA C++.

The same three products as `linear` has, for any number of rows: where Triton's tiles come in powers of two, these come
in eights, and a warp that only copies keeps more of the weights under way. Sizes and units: see `cuda/product.cu`.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from enum import IntEnum

import torch
import triton
from torch import Tensor

from voxcpm_grpc.kernels.cuda_code import Function, Shape, checked, compile_cuda, load_function
from voxcpm_grpc.kernels.launch import multiprocessors

DEPTH = 64  # inputs of a slab
SHARED_BYTES = 227 << 10  # that a block may have
OWN_BYTES = 2048  # of them, for what the source declares and the alignment of the rest


class Role(IntEnum):
    """What follows the product, by the kernel's own numbers."""

    LINEAR = 0
    GATED = 1
    ADD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How one launch is cut: a block makes tiles of `outputs` weights x `rows` rows, with `stages` slabs under way.

    `splits` blocks share the inputs of a tile, or `share` blocks the copies of their rows; `resident` blocks fit a
    multiprocessor.
    """

    rows: int
    outputs: int
    stages: int
    splits: int = 1
    share: int = 1
    resident: int = 1

    def shared(self, role: Role) -> int:
        """Bytes of shared memory that a block asks for."""
        ring = self.stages * (self.outputs + self.rows) * 2 * DEPTH
        if self.splits > 1 or role is Role.ADD:
            return 1024 + max(ring, self.rows * (self.outputs + 4) * 4)
        outputs = self.outputs // 2 if role is Role.GATED else self.outputs
        return 1024 + ring + self.rows * (outputs * 2 + 16 * self._groups)

    def threads(self) -> int:
        """Groups of warps that multiply, and a warp that copies; a whole group where the others want its registers."""
        return 128 * self._groups + (128 if self.outputs // self._groups // 64 * self.rows > 256 else 32)

    @property
    def _groups(self) -> int:
        return 2 if self.outputs > 64 else 1


class _Arguments(ctypes.Structure):
    """The kernel's last parameter, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("residual", "out", "squares", "made")),
        *((name, ctypes.c_int) for name in ("rows", "inputs", "outputs", "parts", "tiles")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
    )


def norm_linear(x: Tensor, squares: Tensor | None, eps: float, weight: Tensor, cut: Cut) -> Tensor:
    """What `reference.norm_linear` says. `squares` [parts, t] float32 add up to the sum of squares of each row of x;
    None: x is normalized already."""
    return _launch(Role.LINEAR, x, weight, cut, squares=squares, eps=eps)


def norm_gated(x: Tensor, squares: Tensor | None, eps: float, weight: Tensor, cut: Cut) -> Tensor:
    """What `reference.norm_gated` says; `squares` as for `norm_linear`."""
    return _launch(Role.GATED, x, weight, cut, squares=squares, eps=eps)


def linear_add(x: Tensor, weight: Tensor, residual: Tensor, scale: float, cut: Cut) -> tuple[Tensor, Tensor]:
    """What `reference.linear_add` says, and the `squares` of it that a norm after it wants."""
    made = x.new_empty(weight.shape[0] // cut.outputs, x.shape[0], dtype=torch.float32)
    return _launch(Role.ADD, x, weight, cut, residual=residual, scale=scale, made=made), made


def _launch(
    role: Role,
    x: Tensor,
    weight: Tensor,
    cut: Cut,
    *,
    squares: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    scale: float = 1.0,
    made: Tensor | None = None,
) -> Tensor:
    rows, inputs = x.shape
    tiles, blocks = weight.shape[0] // cut.outputs, triton.cdiv(rows, cut.rows)
    if weight.shape[0] % (cut.outputs * cut.share) or inputs % (DEPTH * cut.splits):
        raise ValueError(f"{cut} does not divide {inputs} inputs and {weight.shape[0]} outputs")
    for part in (x, weight, residual, squares):
        if part is not None and (not part.is_contiguous() or part.data_ptr() % 16):
            raise ValueError("x, weight, residual and squares must be contiguous, from a multiple of 16 bytes on")
    kernel = load_kernel(role, cut, x.device)
    outputs = weight.shape[0] // 2 if role is Role.GATED else weight.shape[0]
    out = x.new_empty(rows, outputs)
    arguments = _Arguments(
        rows=rows,
        inputs=inputs,
        outputs=outputs,
        parts=0 if squares is None else squares.shape[0],
        tiles=tiles,
        eps=eps,
        scale=scale,
        out=out.data_ptr(),
        **{
            name: tensor.data_ptr()
            for name, tensor in (("residual", residual), ("squares", squares), ("made", made))
            if tensor is not None
        },
    )
    workers = tiles
    if cut.splits == 1 and role is not Role.ADD:  # blocks that stay for several tiles of the same rows
        most = max(multiprocessors(x.device) * cut.resident // blocks // cut.share, 1) * cut.share
        workers = min(tiles, most)
    kernel.launch(
        (workers, blocks, cut.splits),
        _weight_map(weight.data_ptr(), weight.shape[0], inputs, cut.outputs, role is Role.GATED),
        _matrix_map(x.data_ptr(), rows, inputs, cut.rows // cut.share),
        arguments,
    )
    return out


@functools.cache
def load_kernel(role: Role, cut: Cut, device: torch.device) -> Function:
    """The kernel of a cut, compiled for the device. Raises KernelUnavailable, or ValueError for an impossible cut."""
    shape = Shape(
        threads=cut.threads(),
        shared=cut.shared(role),
        cluster=(cut.share, 1, cut.splits),
        early=True,
    )
    return load_function(compile_product(role, cut), "product", shape, device)


def compile_product(role: Role, cut: Cut) -> bytes:
    """Machine code of a cut. Raises KernelUnavailable, or ValueError for an impossible cut."""
    fits = cut.shared(role) + OWN_BYTES <= SHARED_BYTES // cut.resident
    whole = cut.rows % (8 * cut.share) == 0 and cut.rows % cut.splits == 0 and 8 <= cut.rows <= 256
    alone = cut.splits == 1 or cut.share == 1
    if not fits or not whole or not alone or cut.stages < 2 or cut.outputs not in (64, 128, 256):
        raise ValueError(f"no block can be cut as {cut}, with {cut.shared(role)} bytes of shared memory")
    constants = {
        "BM": cut.outputs,
        "BN": cut.rows,
        "STAGES": cut.stages,
        "SPLITS": cut.splits,
        "SHARE": cut.share,
        "RESIDENT": cut.resident,
        "ROLE": int(role),
    }
    return compile_cuda("product.cu", constants, before=_instruction(cut.rows))


def _instruction(rows: int) -> str:
    """The matrix instruction for so many rows, as a function: its operands are as many as its sums."""
    sums = rows // 2
    names = ", ".join(f"%{i}" for i in range(sums))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(sums))
    return (
        f"__device__ __forceinline__ void multiply(float (&d)[{sums}], u64 a, u64 b, bool add) {{\n"
        f'asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{sums + 2}, 0; '
        f"wgmma.mma_async.sync.aligned.m64n{rows}k16.f32.bf16.bf16 "
        f'{{{names}}}, %{sums}, %{sums + 1}, p, 1, 1, 0, 0; }}" : {operands} : "l"(a), "l"(b), "r"((int)add));\n}}\n'
    )


def _weight_map(pointer: int, outputs: int, inputs: int, box: int, gated: bool) -> ctypes.Array[ctypes.c_char]:
    if not gated:
        return _matrix_map(pointer, outputs, inputs, box)
    row = 2 * inputs  # bytes; 8 gates, the 8 values that they gate, and so on
    return _map(pointer, (inputs, 8, 2, outputs // 16), (row, outputs // 2 * row, 8 * row), (DEPTH, 8, 2, box // 16))


def _matrix_map(pointer: int, rows: int, columns: int, box: int) -> ctypes.Array[ctypes.c_char]:
    return _map(pointer, (columns, rows), (2 * columns,), (DEPTH, box))


@functools.lru_cache(1 << 14)
def _map(
    pointer: int, sizes: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]
) -> ctypes.Array[ctypes.c_char]:
    """What the copy unit is told of a bfloat16 tensor: innermost dimension first, strides in bytes."""
    from cuda.bindings import driver

    room = (ctypes.c_char * 192)()  # the driver wants it on a multiple of 64 bytes, which cuda-bindings' own is not
    made = (ctypes.c_char * 128).from_buffer(room, -ctypes.addressof(room) % 64)
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        made,
        int(driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16),
        len(sizes),
        ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * len(sizes))(*sizes),
        (ctypes.c_uint64 * len(strides))(*strides),
        (ctypes.c_uint32 * len(box))(*box),
        (ctypes.c_uint32 * len(sizes))(*(1 for _ in sizes)),
        int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B),
        int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
        int(driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )
    checked((status,))
    return made
