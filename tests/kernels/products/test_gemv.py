"""Products of one row agree with their definitions for every size."""

import pytest
import torch
from support.engines.gpus import needs_hopper

from voxcpm_grpc.kernels.products import reference
from voxcpm_grpc.layers.linear import quantize

SIZES = [(128, 96), (200, 36), (6144, 32), (2048, 10)]  # inputs, outputs


@pytest.fixture
def gemv():
    pytest.importorskip("triton")

    from voxcpm_grpc.kernels.products import gemv

    return gemv


def operands(target, inputs, outputs):
    device, dtype = target
    parts = torch.randn(1, inputs), torch.randn(1, outputs), torch.randn(2 * outputs, inputs) * inputs**-0.5
    return (part.to(device, dtype) for part in parts)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_all_products_agree_with_the_reference(gemv, target, agree, sizes):
    x, residual, weight = operands(target, *sizes)
    half = weight[: sizes[1]].contiguous()
    exact = [part.float() for part in (x, residual, weight, half)]
    agree(gemv.gemv_norm_linear(x, 1e-5, half), reference.norm_linear(exact[0], 1e-5, exact[3]))
    agree(gemv.gemv_norm_gated(x, 1e-5, weight), reference.norm_gated(exact[0], 1e-5, exact[2]))
    expected = reference.linear_add(exact[0], exact[3], exact[1], 0.5)
    agree(gemv.gemv_linear_add(x, half, residual, 0.5), expected)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_gain_multiplies_the_normalized_row(gemv, target, agree, sizes):
    x, _, weight = operands(target, *sizes)
    gain = (1 + 0.3 * torch.randn(sizes[0])).to(*target)
    agree(gemv.gemv_norm_linear(x, 1e-5, weight, gain=gain), reference.norm_linear(x, 1e-5, weight, gain=gain))
    agree(gemv.gemv_norm_gated(x, 1e-5, weight, gain=gain), reference.norm_gated(x, 1e-5, weight, gain=gain))
    with pytest.raises(ValueError, match="gain"):
        gemv.gemv_norm_gated(x, 1e-5, weight, gain=gain[1:])


@needs_hopper
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_all_products_with_weights_of_8_bits_agree(gemv, target, agree, sizes):
    x, residual, weight = operands(target, *sizes)
    (weight, scale), half = quantize(weight), slice(sizes[1])
    exact = x.float(), residual.float(), reference.dequantize(weight, scale, torch.float32)
    out = gemv.gemv_norm_linear(x, 1e-5, weight[half].contiguous(), weight_scale=scale[half].contiguous())
    agree(out, reference.norm_linear(exact[0], 1e-5, exact[2][half]))
    agree(gemv.gemv_norm_gated(x, 1e-5, weight, weight_scale=scale), reference.norm_gated(exact[0], 1e-5, exact[2]))
    out = gemv.gemv_linear_add(x, weight[half].contiguous(), residual, 0.5, weight_scale=scale[half].contiguous())
    agree(out, reference.linear_add(exact[0], exact[2][half], exact[1], 0.5))


def test_more_rows_are_refused(gemv, target):
    x, _, weight = operands(target, 16, 4)
    with pytest.raises(ValueError, match="2 rows"):
        gemv.gemv_norm_linear(x.repeat(2, 1), 1e-5, weight)
