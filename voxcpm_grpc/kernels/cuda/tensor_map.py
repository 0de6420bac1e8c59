"""Descriptions of matrices for Hopper's copy unit, which copies boxes of them to shared memory."""

from __future__ import annotations

import ctypes
import functools

from voxcpm_grpc.kernels.cuda.status import checked

TensorMap = ctypes.Array[ctypes.c_char]  # 128 bytes at a multiple of 64, a parameter of a launch


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
