"""Weights of 8-bit floats: float8_e4m3fn, with a scale for each output of a linear map."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow, and a dtype
# that is a constexpr has the attributes of the dtype.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import chained, launch_next, wait

_BLOCK = 4096  # weights of a program


def dequantize(weight: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Computes `reference.dequantize`."""
    outputs, inputs = weight.shape
    if not weight.is_contiguous() or not weight_scale.is_contiguous():
        raise ValueError("weight and weight_scale must be contiguous")
    out = torch.empty_like(weight, dtype=dtype)
    block = min(_BLOCK, triton.next_power_of_2(inputs))
    _dequantize_kernel[(outputs, triton.cdiv(inputs, block))](
        weight, weight_scale, out, INPUTS=inputs, BLOCK=block, **chained(weight.device)
    )
    return out


@triton.jit
def _dequantize_kernel(weight, weight_scale, out, INPUTS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    launch_next(OVERLAP)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    where = tl.program_id(0).to(tl.int64) * INPUTS + k
    value = tl.load(weight + where, mask=k < INPUTS, other=0.0)
    scale = tl.load(weight_scale + tl.program_id(0))
    wait(OVERLAP)
    tl.store(out + where, (value.to(tl.float32) * scale).to(out.dtype.element_ty), mask=k < INPUTS)


@triton.jit
def convert(weight, DTYPE: tl.constexpr, PAIRS: tl.constexpr):
    """A weight in the dtype of a product, divided by `conversion_scale`.

    The instruction that converts float8_e4m3fn to bfloat16 is slow. Here the bits of the one are moved to their places
    in the other, whose exponent is then too small by 120. PAIRS: a thread has pairs of neighbours instead of fours.
    """
    if weight.dtype.is_fp8() and tl.bfloat16 == DTYPE:
        if PAIRS:
            return tl.inline_asm_elementwise(
                """
                {
                .reg .b32 a, b;
                prmt.b32 a, $1, 0, 0x1404;
                shr.b32 b, a, 4;
                and.b32 b, b, 0x07f007f0;
                lop3.b32 $0, a, 0x80008000, b, 0xea;
                }
                """,
                "=r,r",
                [weight],
                dtype=tl.bfloat16,
                is_pure=True,
                pack=2,
            )
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 a, b, c, d;
            prmt.b32 a, $2, 0, 0x1404;
            prmt.b32 b, $2, 0, 0x3424;
            shr.b32 c, a, 4;
            shr.b32 d, b, 4;
            and.b32 c, c, 0x07f007f0;
            and.b32 d, d, 0x07f007f0;
            lop3.b32 $0, a, 0x80008000, c, 0xea;
            lop3.b32 $1, b, 0x80008000, d, 0xea;
            }
            """,
            "=r,=r,r",
            [weight],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=4,
        )
    return weight.to(DTYPE)


@triton.jit
def conversion_scale(WEIGHT: tl.constexpr, DTYPE: tl.constexpr):
    """The factor of a product in DTYPE with weights of the type WEIGHT that `convert` has converted."""
    return 1.329227995784916e36 if WEIGHT.is_fp8() and tl.bfloat16 == DTYPE else 1.0  # 2 ** 120
