"""Weights of 8 bits become those of the computation exactly as defined."""

import pytest
import torch
from support.engines.gpus import needs_hopper

from voxcpm_grpc.kernels.products import reference
from voxcpm_grpc.layers.linear import quantize

pytestmark = needs_hopper


@pytest.fixture
def fp8():
    pytest.importorskip("triton")

    from voxcpm_grpc.kernels.products import fp8

    return fp8


@pytest.mark.parametrize("size", [(3, 128), (40, 200), (2, 6144)], ids=str)
def test_dequantize(fp8, target, size):
    device, dtype = target
    weight, scale = quantize(torch.randn(size).to(device))
    assert torch.equal(fp8.dequantize(weight, scale, dtype), reference.dequantize(weight, scale, dtype))


def test_every_value_of_8_bits_passes_through_a_product(fp8, target):
    """One input is one and the others are zero, so that an output is a weight, which bfloat16 holds exactly."""
    from voxcpm_grpc.kernels.products.skinny_gemm import Tile, norm_linear

    device, dtype = target
    codes = torch.arange(256, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
    codes = torch.where(codes.float().isnan(), torch.zeros_like(codes.float()), codes.float()).to(codes.dtype)
    weight, x = codes.view(4, 64).repeat(16, 1), torch.eye(64, dtype=dtype, device=device)
    scale = torch.full((64,), 0.5, device=device)
    for swap in (False, True):
        out = norm_linear(x, None, 0.0, weight, Tile(rows=64, columns=64, depth=64, swap=swap), weight_scale=scale)
        assert torch.equal(out, (weight.float().t() * 0.5).to(dtype))
