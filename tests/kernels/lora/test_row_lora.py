"""The update of one row, prepared together with its product, agrees with its definition."""

import pytest
import torch

from voxcpm_grpc.kernels.lora import reference as lora_reference
from voxcpm_grpc.kernels.products import reference as products_reference

BANKS, EPS = 3, 1e-5


@pytest.fixture
def gemv():
    pytest.importorskip("triton")

    from voxcpm_grpc.kernels.products import gemv

    return gemv


@pytest.fixture
def row_update():
    pytest.importorskip("triton")

    from voxcpm_grpc.kernels.lora.row_lora import RowUpdate

    return RowUpdate.of


def operands(target, inputs, parts, rank):
    device, dtype = target
    weight = torch.randn(sum(parts), inputs) * inputs**-0.5
    down = torch.randn(BANKS, len(parts), rank, inputs) * inputs**-0.5
    up = torch.randn(BANKS, sum(parts), rank) * rank**-0.5
    x, norm = 3 * torch.randn(1, inputs), torch.randn(inputs)
    return [part.to(device, dtype) for part in (x, weight, down, up, norm)]


@pytest.mark.parametrize("bank", [-1, 0, 2])
@pytest.mark.parametrize(
    ("inputs", "parts", "rank"), [(96, (40,), 16), (160, (64, 32, 24), 16), (64, (48, 16), 128)], ids=str
)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_normalized_row(gemv, row_update, target, agree, bank, inputs, parts, rank, weighted):
    x, weight, down, up, norm = operands(target, inputs, parts, rank)
    norm = norm if weighted else None
    adapter = torch.tensor([bank], device=x.device)
    truth = products_reference.norm_linear(x.float(), EPS, weight.float())
    exact_norm = None if norm is None else norm.float()
    exact = truth, x.float(), adapter, down.float(), up.float(), parts
    lora_reference.add_low_rank(*exact, norm=exact_norm, eps=EPS)
    update = row_update(adapter, down, up, parts, norm)
    out = gemv.gemv_norm_linear(x, EPS, weight, update)
    update.add(out)
    agree(out, truth)


@pytest.mark.parametrize("bank", [-1, 1])
@pytest.mark.parametrize(("inputs", "outputs", "rank"), [(96, 40, 16), (320, 128, 64)])
def test_a_row_that_is_added(gemv, row_update, target, agree, bank, inputs, outputs, rank):
    x, weight, down, up, _ = operands(target, inputs, (outputs,), rank)
    residual = torch.randn(1, outputs).to(x)
    adapter = torch.tensor([bank], device=x.device)
    truth = products_reference.linear_add(x.float(), weight.float(), residual.float(), 0.5)
    lora_reference.add_low_rank(truth, x.float(), adapter, down.float(), up.float(), (outputs,), scale=0.5)
    update = row_update(adapter, down, up, (outputs,))
    out = gemv.gemv_linear_add(x, weight, residual, 0.5, update)
    update.add(out, scale=0.5)
    agree(out, truth)


def test_values_of_a_bank_that_the_row_does_not_name_are_not_read(gemv, row_update, target):
    x, weight, down, up, _ = operands(target, 96, (40,), 16)
    alone = gemv.gemv_norm_linear(x, EPS, weight)
    down.fill_(torch.nan)
    up.fill_(torch.nan)
    update = row_update(torch.tensor([-1], device=x.device), down, up, (40,))
    out = gemv.gemv_norm_linear(x, EPS, weight, update)
    update.add(out)
    assert torch.equal(out, alone)


@pytest.mark.gpu
def test_launches_that_overlap_wait_for_each_other(gemv, row_update):
    """A captured chain in which each launch reads what the one before wrote gives what separate calls give."""
    target = "cuda", torch.bfloat16
    x, weight, down, up, _ = operands(target, 2048, (2048,), 64)
    adapter = torch.tensor([1], device="cuda")

    def chain(pause):
        y = x
        for _ in range(20):
            update = row_update(adapter, down, up, (2048,))
            y = gemv.gemv_linear_add(y, weight, y, 0.3, update)
            pause()
            update.add(y, scale=0.3)
            pause()
        return y

    expected = chain(torch.cuda.synchronize)
    assert expected.isfinite().all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain(lambda: None)
    for _ in range(20):
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, expected)


def test_sizes_that_do_not_fit_are_refused(gemv, row_update, target):
    _, _, down, up, _ = operands(target, 96, (24, 16), 16)
    adapter = torch.zeros(1, dtype=torch.int64, device=down.device)
    with pytest.raises(ValueError, match=r"2 maps .* outputs of \[40\]"):
        row_update(adapter, down, up, (40,))
    with pytest.raises(ValueError, match="2 sequences"):
        row_update(adapter.repeat(2), down, up, (24, 16))
    with pytest.raises(ValueError, match=r"out is \[1, 24\], not contiguous \[1, 40\]"):
        row_update(adapter, down, up, (24, 16)).add(torch.zeros(1, 24, device=down.device))
