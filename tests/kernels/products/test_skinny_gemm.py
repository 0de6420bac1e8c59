"""Products fused with norm, gate and residual agree with their definitions, with every tile."""

import pytest
import torch
from support.engines.gpus import needs_hopper

from voxcpm_grpc.kernels.launch.counters import COUNT, counters
from voxcpm_grpc.kernels.products import reference
from voxcpm_grpc.layers.linear import quantize

WIDE = {"rows": 16, "columns": 32, "depth": 64}
SWAPPED = {**WIDE, "swap": True}
every_tile = pytest.mark.parametrize("shape", [WIDE, SWAPPED], ids=["wide", "swapped"])


@pytest.fixture
def skinny_gemm():
    pytest.importorskip("triton")

    from voxcpm_grpc.kernels.products import skinny_gemm

    return skinny_gemm


def operands(target, rows, inputs, outputs):
    device, dtype = target
    x, residual = torch.randn(rows, inputs), torch.randn(rows, outputs)
    weight = torch.randn(outputs, inputs) * inputs**-0.5
    return (part.to(device, dtype) for part in (x, residual, weight))


def exact(function, *arguments):
    return function(*(x.float() if torch.is_tensor(x) else x for x in arguments))


@pytest.mark.parametrize("rows", [1, 16, 22])
@every_tile
def test_norm_linear(skinny_gemm, target, agree, rows, shape):
    x, _, weight = operands(target, rows, 128, 96)
    squares = x.float().square().view(rows, 2, -1).sum(-1).t().contiguous()
    out = skinny_gemm.norm_linear(x, squares, 1e-5, weight, skinny_gemm.Tile(**shape))
    agree(out, exact(reference.norm_linear, x, 1e-5, weight))


@pytest.mark.parametrize("rows", [1, 22])
@every_tile
def test_norm_gated(skinny_gemm, target, agree, rows, shape):
    x, _, weight = operands(target, rows, 128, 192)
    squares = x.float().square().view(rows, 2, -1).sum(-1).t().contiguous()
    out = skinny_gemm.norm_gated(x, squares, 1e-5, weight, skinny_gemm.Tile(**shape))
    agree(out, exact(reference.norm_gated, x, 1e-5, weight))


@pytest.mark.parametrize("rows", [1, 22])
@every_tile
def test_a_gain_multiplies_the_normalized_rows(skinny_gemm, target, agree, rows, shape):
    x, _, weight = operands(target, rows, 192, 128)
    gain = (1 + 0.3 * torch.randn(192)).to(*target)
    squares, tile = x.float().square().view(rows, 2, -1).sum(-1).t().contiguous(), skinny_gemm.Tile(**shape)
    for name in ("norm_linear", "norm_gated"):
        out = getattr(skinny_gemm, name)(x, squares, 1e-5, weight, tile, gain=gain)
        agree(out, getattr(reference, name)(x, 1e-5, weight, gain=gain))
        with pytest.raises(ValueError, match="gain"):
            getattr(skinny_gemm, name)(x, None, 1e-5, weight, tile, gain=gain)


@needs_hopper
@pytest.mark.parametrize("splits", [1, 3])
@every_tile
def test_weights_of_8_bits(skinny_gemm, target, agree, splits, shape):
    x, residual, weight = operands(target, 22, 192, 64)
    weight, scale = quantize(weight)
    whole = reference.dequantize(weight, scale, torch.float32)
    squares = x.float().square().sum(1)[None]
    tile = skinny_gemm.Tile(**shape, splits=splits)
    out = skinny_gemm.norm_linear(x, squares, 1e-5, weight, tile, weight_scale=scale)
    agree(out, exact(reference.norm_linear, x, 1e-5, whole))
    out, _ = skinny_gemm.linear_add(x, weight, residual, 0.5, tile, weight_scale=scale)
    agree(out, exact(reference.linear_add, x, whole, residual, 0.5))
    if splits == 1:
        out = skinny_gemm.norm_gated(x, squares, 1e-5, weight, tile, weight_scale=scale)
        agree(out, exact(reference.norm_gated, x, 1e-5, whole))


def test_normalized_input_is_not_normalized_again(skinny_gemm, target, agree):
    x, _, weight = operands(target, 5, 128, 96)
    out = skinny_gemm.norm_linear(x, None, 1e-5, weight, skinny_gemm.Tile(**WIDE))
    agree(out, exact(torch.nn.functional.linear, x, weight))


@pytest.mark.parametrize("rows", [1, 22])
@pytest.mark.parametrize("splits", [1, 3])
@every_tile
def test_linear_add(skinny_gemm, target, agree, rows, splits, shape):
    x, residual, weight = operands(target, rows, 192, 64)
    tile = skinny_gemm.Tile(**shape, splits=splits)
    for _ in range(2):  # a launch leaves the counters as the next one needs them
        out, squares = skinny_gemm.linear_add(x, weight, residual, 0.5, tile)
        agree(out, exact(reference.linear_add, x, weight, residual, 0.5))
        torch.testing.assert_close(squares.sum(0), out.float().square().sum(1))
        assert not counters(x.device, 8).any()


def test_a_tile_that_does_not_divide_the_weights_is_refused(skinny_gemm, target):
    x, residual, weight = operands(target, 1, 96, 64)
    with pytest.raises(ValueError, match="96 inputs"):
        skinny_gemm.linear_add(x, weight, residual, 1.0, skinny_gemm.Tile(**WIDE))


def test_too_many_tiles_are_refused(skinny_gemm, target):
    x, residual, weight = operands(target, COUNT * 16, 128, 64)
    tile = skinny_gemm.Tile(**WIDE, splits=2)
    with pytest.raises(ValueError, match=f"there are {COUNT}"):
        skinny_gemm.linear_add(x, weight, residual, 1.0, tile)
