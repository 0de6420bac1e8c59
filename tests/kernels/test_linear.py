"""Products fused with norm, gate and residual agree with their definitions, however a launch is cut."""

import pytest
import torch

from voxcpm_grpc.kernels import reference

NARROW = {"rows": 16, "columns": 16, "depth": 32, "ways": 2}
WIDE = {"rows": 16, "columns": 32, "depth": 64}


@pytest.fixture
def linear():
    pytest.importorskip("triton")
    from voxcpm_grpc.kernels import linear

    return linear


def operands(place, rows, inputs, outputs):
    device, dtype = place
    x, residual = torch.randn(rows, inputs), torch.randn(rows, outputs)
    weight, norm = torch.randn(outputs, inputs) * inputs**-0.5, torch.rand(inputs) + 0.5
    return (part.to(device, dtype) for part in (x, residual, weight, norm))


def exact(function, *arguments):
    return function(*(x.float() if torch.is_tensor(x) else x for x in arguments))


@pytest.mark.parametrize("rows", [1, 16, 22])
@pytest.mark.parametrize("cut", [NARROW, WIDE], ids=["narrow", "wide"])
def test_norm_linear(linear, place, agree, rows, cut):
    x, _, weight, norm = operands(place, rows, 128, 96)
    out = linear.norm_linear(x, norm, 1e-5, weight, linear.Tile(**cut))
    agree(out, exact(reference.norm_linear, x, norm, 1e-5, weight))


@pytest.mark.parametrize("rows", [1, 22])
@pytest.mark.parametrize("cut", [NARROW, WIDE], ids=["narrow", "wide"])
def test_norm_gated(linear, place, agree, rows, cut):
    x, _, weight, norm = operands(place, rows, 128, 192)
    out = linear.norm_gated(x, norm, 1e-5, weight, linear.Tile(**cut))
    agree(out, exact(reference.norm_gated, x, norm, 1e-5, weight))


@pytest.mark.parametrize("rows", [1, 22])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("cut", [NARROW, WIDE], ids=["narrow", "wide"])
def test_linear_add(linear, place, agree, rows, splits, cut):
    x, residual, weight, _ = operands(place, rows, 192, 64)
    counters = torch.zeros(8, dtype=torch.int32, device=x.device)
    tile = linear.Tile(**cut, splits=splits)
    for _ in range(2):  # a launch leaves the counters as the next one needs them
        out = linear.linear_add(x, weight, residual, 0.5, tile, counters)
        agree(out, exact(reference.linear_add, x, weight, residual, 0.5))
        assert not counters.any()


def test_a_tile_that_does_not_divide_the_weights_is_refused(linear, place):
    x, residual, weight, _ = operands(place, 1, 96, 64)
    with pytest.raises(ValueError, match="96 inputs"):
        linear.linear_add(x, weight, residual, 1.0, linear.Tile(**WIDE))


def test_too_few_counters_are_refused(linear, place):
    x, residual, weight, _ = operands(place, 17, 128, 64)
    tile = linear.Tile(**NARROW, splits=2)
    with pytest.raises(ValueError, match="8 counters"):
        linear.linear_add(x, weight, residual, 1.0, tile, torch.zeros(7, dtype=torch.int32, device=x.device))
