"""The arguments of kernels for Hopper: maps of tensors, and functions that multiply matrices."""

from __future__ import annotations

import ctypes
import functools

from voxcpm_grpc.kernels.cuda.compiler import checked

TensorMap = ctypes.Array[ctypes.c_char]  # bytes: 128 at a multiple of 64, a parameter of a launch


def matrix_map(pointer: int, rows: int, columns: int, box: tuple[int, int]) -> TensorMap:
    """A contiguous bfloat16 matrix [rows, columns], copied in boxes (rows, columns). See `tensor_map`."""
    return tensor_map(pointer, (columns, rows), (2 * columns,), box[::-1])


@functools.lru_cache(1 << 14)
def tensor_map(pointer: int, sizes: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]) -> TensorMap:
    """A bfloat16 tensor, innermost dimension first, with strides in bytes, copied in boxes of 64 inner elements.

    Rows of a box lie 128 bytes apart, with their 16-byte parts exchanged as the matrix unit expects ("swizzle" of 128
    bytes). Elements outside of the tensor arrive as zeros. Raises CudaError.
    """
    from cuda.bindings import driver

    room = (ctypes.c_char * 192)()  # the driver needs a multiple of 64, which the type of cuda-bindings does not give
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
    checked((driver.CUresult(status),))
    return made


def multiply_function(rows: int, kind: str = "bf16", *, registers: bool = False) -> str:
    """A function `multiply(d, a, b, add)` that adds, or assigns, the product of two tiles in shared memory.

    d has rows / 2 sums a thread, of 64 x `rows` in a group of four warps. a and b are descriptors of tiles of `kind`
    (bf16 or f16) with 16 inputs, whose rows are contiguous: 64 x 16 and `rows` x 16. `rows` is a multiple of 8 up to
    256. With `registers` a is four words of each thread instead.
    """
    if rows % 8 or not 8 <= rows <= 256:
        raise ValueError(f"the matrix unit multiplies a multiple of 8 rows up to 256, not {rows}")
    sums, words = rows // 2, 4 if registers else 1
    names = ", ".join(f"%{i}" for i in range(sums))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(sums))
    parameter, first, given, flags = "u64 a", f"%{sums}", '"l"(a)', "1, 1, 0, 0"
    if registers:
        parameter, flags = "const u32 (&a)[4]", "1, 1, 0"
        first = f"{{{', '.join(f'%{sums + i}' for i in range(words))}}}"
        given = ", ".join(f'"r"(a[{i}])' for i in range(words))
    return (
        f"__device__ __forceinline__ void multiply(float (&d)[{sums}], {parameter}, u64 b, bool add) {{\n"
        f'asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{sums + words + 1}, 0; '
        f"wgmma.mma_async.sync.aligned.m64n{rows}k16.f32.{kind}.{kind} "
        f'{{{names}}}, {first}, %{sums + words}, p, {flags}; }}" : {operands} : {given}, "l"(b), "r"((int)add));\n}}\n'
    )
