"""Products of one row agree with their definitions for every size."""

import pytest
import torch

from voxcpm_grpc.kernels import reference

SIZES = [(128, 96), (200, 36), (6144, 32), (2048, 10)]  # inputs, outputs


@pytest.fixture
def gemv():
    pytest.importorskip("triton")

    from voxcpm_grpc.kernels import gemv

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


def test_more_rows_are_refused(gemv, target):
    x, _, weight = operands(target, 16, 4)
    with pytest.raises(ValueError, match="2 rows"):
        gemv.gemv_norm_linear(x.repeat(2, 1), 1e-5, weight)
