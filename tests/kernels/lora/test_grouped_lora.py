"""Low-rank updates with an adapter for each row agree with their definition, also for rows without an adapter."""

import pytest
import torch

from voxcpm_grpc.kernels.lora import reference as lora_reference
from voxcpm_grpc.kernels.products import reference as products_reference

pytestmark = pytest.mark.thorough

BANKS = 4


@pytest.fixture
def grouped_lora():
    pytest.importorskip("triton")

    from voxcpm_grpc.kernels.lora import grouped_lora

    return grouped_lora


def operands(target, rows, inputs, parts, rank=16):
    device, dtype = target
    x = torch.randn(rows, inputs)
    down = torch.randn(BANKS, len(parts), rank, inputs) * inputs**-0.5
    up = torch.randn(BANKS, sum(parts), rank)
    out = torch.randn(rows, sum(parts))
    return [part.to(device, dtype) for part in (out, x, down, up)]


def compare(grouped_lora, agree, out, x, adapter, down, up, parts, *, norm=None, eps=None, scale=1.0):
    truth, exact_norm = out.float(), None if norm is None else norm.float()
    exact = truth, x.float(), adapter, down.float(), up.float(), parts
    lora_reference.add_low_rank(*exact, norm=exact_norm, eps=eps, scale=scale)
    before = out.clone()
    grouped_lora.add_low_rank(out, x, adapter, down, up, parts, norm=norm, eps=eps, scale=scale)
    agree(out, truth)
    alone = adapter.repeat(len(x) // len(adapter)) < 0
    assert torch.equal(out[alone], before[alone])


def adapters(x, *banks):
    return torch.tensor([banks[i % len(banks)] for i in range(len(x))], device=x.device)


@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("parts", [(64,), (64, 32, 32), (48, 48)], ids=len)
def test_rows_with_different_adapters_and_none(grouped_lora, target, agree, rows, parts):
    out, x, down, up = operands(target, rows, 160, parts)
    compare(grouped_lora, agree, out, x, adapters(x, 2, -1, 0, 2, 3), down, up, parts, scale=0.5)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("eps", [None, 1e-5])
def test_normalized_rows(grouped_lora, target, agree, weighted, eps):
    out, x, down, up = operands(target, 5, 320, (32, 16, 16))
    norm = torch.randn(320).to(x) if weighted else None
    compare(grouped_lora, agree, out, 3 * x, adapters(x, 1, 0), down, up, (32, 16, 16), norm=norm, eps=eps)


def test_many_rows_are_computed_in_one_share(grouped_lora, target, agree):
    out, x, down, up = operands(target, 16 * grouped_lora.FEW_TILES + 3, 96, (32,), rank=32)
    compare(grouped_lora, agree, out, x, adapters(x, 0, 1, 2, -1, 3), down, up, (32,))


def test_nothing_changes_without_adapters(grouped_lora, target):
    out, x, down, up = operands(target, 20, 96, (32,))
    before = out.clone()
    grouped_lora.add_low_rank(out, x, adapters(x, -1), down, up, (32,))
    assert torch.equal(out, before)


def test_values_of_a_bank_that_no_row_names_are_not_read(grouped_lora, target, agree):
    out, x, down, up = operands(target, 6, 96, (32,))
    down[1], up[1] = torch.nan, torch.nan
    compare(grouped_lora, agree, out, x, adapters(x, 0, -1, 2), down, up, (32,))


@pytest.mark.parametrize("parts", [(20,), (40, 40), (96, 24, 8)], ids=str)
def test_outputs_of_any_size(grouped_lora, target, agree, parts):
    out, x, down, up = operands(target, 9, 40, parts)
    compare(grouped_lora, agree, out, x, adapters(x, 3, 0, -1), down, up, parts)


@pytest.mark.parametrize(("sequences", "tokens"), [(1, 11), (6, 11), (25, 11), (5, 2)])
def test_sequences_of_several_rows(grouped_lora, target, agree, sequences, tokens):
    out, x, down, up = operands(target, sequences * tokens, 96, (32, 16, 16))
    adapter = adapters(x[:sequences], 1, -1, 3, 2, 2)
    compare(grouped_lora, agree, out, x, adapter, down, up, (32, 16, 16), eps=1e-5)


@pytest.mark.parametrize("banks", [1, 2])
@pytest.mark.parametrize("rows", [1, 5])
def test_few_banks(grouped_lora, target, agree, rows, banks):
    out, x, down, up = operands(target, rows, 96, (32,))
    few = down[:banks].contiguous(), up[:banks].contiguous()
    compare(grouped_lora, agree, out, x, adapters(x, banks - 1, -1), *few, (32,))


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_sums_of_squares_are_brought_up_to_date(grouped_lora, target, agree, rows):
    out, x, down, up = operands(target, rows, 96, (128,))
    adapter = adapters(x, 2, -1, 0)
    squares = torch.full((4, rows), -1.0, device=x.device)
    grouped_lora.prepare(x, adapter, down, up, (128,)).add(out, squares=squares)
    agree(squares, torch.where(adapter < 0, -1.0, out.float().unflatten(1, (4, 32)).square().sum(2).t()))


@pytest.mark.parametrize("rows", [8, pytest.param(64, marks=pytest.mark.gpu)])
def test_an_update_beside_a_product_of_the_same_rows(grouped_lora, target, agree, rows):
    """Chains of products and updates agree with separate calls, although their launches overlap."""
    from voxcpm_grpc.kernels.products.gemm_tiles import Epilogue, choose_tile
    from voxcpm_grpc.kernels.products.skinny_gemm import linear_add

    (device, dtype), size = target, 1024
    _, x, down, up = operands(target, rows, size, (size,), rank=64)
    up *= 0.1
    weight = (torch.randn(size, size) * size**-0.5).to(device, dtype)
    adapter = adapters(x, 2, -1, 0, 3, 3)
    tile = choose_tile(Epilogue.ADD, rows, size, size)
    assert tile

    def chain(layers, *, beside):
        y, squares = x, torch.empty(0)
        for _ in range(layers):
            update = grouped_lora.prepare(y, adapter, down, up, (size,), beside=beside)
            y, squares = linear_add(y, weight, y, 0.5, tile, late=beside)
            update.add(y, scale=0.5, squares=squares)
        return y, squares

    truth = x.float()
    for _ in range(2):
        total = products_reference.linear_add(truth, weight.float(), truth, 0.5)
        lora_reference.add_low_rank(total, truth, adapter, down.float(), up.float(), (size,), scale=0.5)
        truth = total
    made, squares = chain(2, beside=True)
    agree(made, truth)
    agree(squares.sum(0), made.float().square().sum(1))
    if device == "cpu":
        return
    expected = chain(6, beside=False)[0]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = chain(6, beside=True)
    graph.replay()
    first = out.clone()
    agree(first, expected)
    for _ in range(50):
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, first)


def test_sizes_that_do_not_fit_are_refused(grouped_lora, target):
    out, x, down, up = operands(target, 4, 96, (24, 8))
    with pytest.raises(ValueError, match="4 rows of 3 sequences"):
        grouped_lora.add_low_rank(out, x, adapters(x[:3], 0), down, up, (24, 8))
    with pytest.raises(ValueError, match=r"2 maps .* outputs of \[32\]"):
        grouped_lora.add_low_rank(out, x, adapters(x, 0), down, up, (32,))
    with pytest.raises(ValueError, match=r"out has 16 columns for outputs of \[24, 8\]"):
        grouped_lora.add_low_rank(out[:, :16].contiguous(), x, adapters(x, 0), down, up, (24, 8))
    with pytest.raises(ValueError, match="one part, not 2"):
        grouped_lora.prepare(x, adapters(x, 0), down, up, (24, 8)).add(out, squares=torch.zeros(1, 4))
