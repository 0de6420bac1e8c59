"""The product that a cluster computes together and adds to the residual stream, for each cut and any number of rows."""

import pytest
import torch

from voxcpm_grpc.kernels.products import reference

pytest.importorskip("triton")
from voxcpm_grpc.kernels.products.split_cuts import CUTS, choose_cut, load_cuts
from voxcpm_grpc.kernels.products.split_product import Cut, compile_split_product, split_linear_add

LIMIT = 6e-3  # bfloat16 against float64
SCALE = 0.5
ANY = [
    *CUTS,
    (512, Cut(outputs=64, rows=48, splits=4, weight_slots=2, x_slots=2)),  # every slot used twice
    (384, Cut(outputs=128, rows=32, splits=4, weight_slots=2, x_slots=2)),  # shares of 1 and of 2 slabs
    (512, Cut(outputs=64, rows=88, splits=8, weight_slots=2, x_slots=2)),  # shares of 8 and of 16 rows
]


@pytest.mark.parametrize(
    "sizes",
    [
        {"outputs": 96, "rows": 88, "splits": 4, "weight_slots": 4, "x_slots": 4},
        {"outputs": 128, "rows": 84, "splits": 4, "weight_slots": 4, "x_slots": 4},  # not a multiple of 8
        {"outputs": 128, "rows": 88, "splits": 1, "weight_slots": 4, "x_slots": 4},
        {"outputs": 128, "rows": 24, "splits": 4, "weight_slots": 4, "x_slots": 4},  # a share without rows
        {"outputs": 128, "rows": 88, "splits": 4, "weight_slots": 1, "x_slots": 4},  # a slab that is read is replaced
        {"outputs": 128, "rows": 16, "splits": 2, "weight_slots": 4, "x_slots": 2},  # no room for the finished rows
        {"outputs": 128, "rows": 88, "splits": 6, "weight_slots": 12, "x_slots": 8},
    ],
)
def test_impossible_cuts_are_refused(sizes):
    with pytest.raises(ValueError, match=r"cut as|limit|too few"):
        Cut(**sizes)


def test_every_cut_is_the_first_that_covers_some_rows():
    found = []
    for inputs, outputs, fewest, most in ((2048, 1024, 33, 176), (4096, 1024, 65, 176), (2048, 2048, 17, 64)):
        chosen = {rows: choose_cut(rows, outputs, inputs, 132) for rows in range(1, 400)}
        assert [rows for rows, cut in chosen.items() if cut] == list(range(fewest, most + 1))
        found += [(inputs, cut) for cut in dict.fromkeys(filter(None, chosen.values()))]
    assert found == list(CUTS)


def test_all_clusters_of_a_launch_run_at_once():
    """A GPU of 132 multiprocessors has room for 17 clusters of 6 blocks, and for no fewer of 4 or 5."""
    for inputs, outputs in ((2048, 1024), (4096, 1024), (2048, 2048)):
        for rows in range(1, 177):
            cut = choose_cut(rows, outputs, inputs, 132)
            if cut is not None:
                clusters = outputs // cut.outputs * -(-rows // cut.rows)
                assert cut.splits <= 6
                assert clusters <= 17


def test_other_sizes_and_smaller_gpus_have_no_cut():
    assert choose_cut(176, 2048, 2048, 132) is None
    assert choose_cut(176, 1024, 2048, 114) is None
    assert choose_cut(64, 2048, 6144, 132) is None


def test_a_device_without_the_kernel_logs_the_reason_once(caplog):
    with caplog.at_level("INFO"):
        assert [load_cuts(torch.device("cpu", 8)) for _ in range(2)] == [False, False]
    assert caplog.text.count("not for cpu:8") == 1


@pytest.mark.parametrize(("inputs", "cut"), ANY, ids=str)
def test_every_cut_compiles(compiles, inputs, cut):
    compiles(compile_split_product, inputs, cut)


def operands(device, rows, inputs, outputs):
    generator = torch.Generator("cuda").manual_seed(rows + inputs + outputs)
    sizes = (rows, inputs), (outputs, inputs), (rows, outputs)
    x, weight, residual = (torch.randn(*size, generator=generator, device=device) for size in sizes)
    return x.bfloat16(), (weight * 2 * inputs**-0.5).bfloat16(), residual.bfloat16()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 22, 110, 154, 176, 351])
@pytest.mark.parametrize(("inputs", "cut"), ANY, ids=str)
def test_agrees_with_the_reference(device, inputs, cut, rows):
    x, weight, residual = operands(device, rows, inputs, 512)
    truth = reference.linear_add(x.double(), weight.double(), residual.double(), SCALE)
    for in_place in (False, True):
        out, squares = split_linear_add(x, weight, residual, SCALE, cut, in_place=in_place)
        assert (out is residual) == in_place
        assert float((out.double() - truth).norm() / truth.norm()) < LIMIT
        torch.testing.assert_close(squares.sum(0), out.float().square().sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize(("inputs", "cut"), ANY, ids=str)
def test_launches_that_overlap_wait_for_each_other(device, inputs, cut):
    """A chain, in which each launch reads the result of the previous one, equals separate calls, in any repetition."""
    x, weight, _ = operands(device, 176, inputs, inputs)

    def chain(pause):
        y = x.clone()
        for _ in range(6):
            y = split_linear_add(y, weight, y, SCALE, cut)[0]
            pause()
        return y

    expected = chain(torch.cuda.synchronize)
    assert expected.isfinite().all()
    for _ in range(4):
        assert torch.equal(chain(lambda: None), expected)
