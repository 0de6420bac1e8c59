"""Maps of hidden states between the networks agree with their definitions, with every number of rows."""

import pytest
import torch
from torch.nn import functional as F

from voxcpm_grpc.models.voxcpm.kernels import reference

SLOTS = 9
every_count = pytest.mark.parametrize("rows", [1, 16, 21])


@pytest.fixture
def hidden_projections():
    pytest.importorskip("triton")

    from voxcpm_grpc.models.voxcpm.kernels import hidden_projections as hidden_projections

    return hidden_projections


@pytest.fixture
def tile(hidden_projections):
    return hidden_projections.Tile(rows=16, columns=16, depth=32, ahead=2)


def random_map(target, outputs, inputs):
    device, dtype = target
    weight, bias = torch.randn(outputs, inputs) * inputs**-0.5, torch.randn(outputs)
    return weight.to(device, dtype), bias.to(device, dtype)


def rows_of(target, *shape):
    device, dtype = target
    return torch.randn(*shape).to(device, dtype)


def exact(function, *arguments):
    def wide(x):
        if torch.is_tensor(x):
            return x.double() if x.is_floating_point() else x
        return tuple(wide(part) for part in x)

    return function(*map(wide, arguments))


@every_count
def test_linear(hidden_projections, target, agree, tile, rows):
    x, (weight, bias) = rows_of(target, rows, 96), random_map(target, 48, 96)
    agree(hidden_projections.linear(x, weight, bias, tile), exact(F.linear, x, weight, bias))


@every_count
def test_conditioning(hidden_projections, target, agree, tile, rows):
    device, _ = target
    slot = torch.randint(0, SLOTS, (rows,), device=device)
    states, maps = [rows_of(target, SLOTS, 64) for _ in range(2)], [random_map(target, n, 64) for n in (32, 32, 48)]
    made = hidden_projections.conditioning(slot, *states, *maps, tile)
    for out, truth in zip(made, exact(reference.conditioning, slot, *states, *maps), strict=True):
        assert out.shape == truth.shape
        agree(out, truth)


def test_every_value_is_quantized_as_by_separate_operations(hidden_projections, target, tile):
    device, dtype = target
    if dtype == torch.bfloat16:
        x = torch.arange(-(2**15), 2**15, dtype=torch.int16, device=device).view(dtype)
        x = x[x.isfinite()]
    else:
        x = torch.linspace(-4, 4, 8192, device=device)
    rows = x[: len(x) // 32 * 32].view(-1, 32)
    weight, bias = torch.eye(32, device=device, dtype=dtype), torch.zeros(32, device=device, dtype=dtype)
    out = hidden_projections.linear(rows, weight, bias, tile, scale=9)
    assert torch.equal(out, reference.quantize(rows, 9))
    assert len(out.unique()) == 19


def test_a_tile_that_does_not_divide_the_map_is_refused(hidden_projections, target, tile):
    with pytest.raises(ValueError, match="does not divide"):
        hidden_projections.linear(rows_of(target, 1, 40), *random_map(target, 48, 40), tile)
    with pytest.raises(ValueError, match="does not divide"):
        slot, states = torch.zeros(1, dtype=torch.int64), [rows_of(target, SLOTS, 64)] * 2
        hidden_projections.conditioning(slot, *states, *[random_map(target, 40, 64)] * 3, tile)
