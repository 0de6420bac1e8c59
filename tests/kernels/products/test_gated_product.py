"""The product of gate and up with the norm and the SwiGLU, for each cut and any number of rows."""

import pytest
import torch

from voxcpm_grpc.kernels.products import reference

pytest.importorskip("triton")
from voxcpm_grpc.kernels.products.gated_cuts import CUTS, FEW, FEWEST_ROWS, MANY, SIZES, choose_cut, load_cuts
from voxcpm_grpc.kernels.products.gated_product import Cut, compile_gated_product, gated_product, new_packets

LIMIT = 1e-2  # bfloat16 against float32
EPS = 1e-5
ANY = [*CUTS, Cut(weights=128, rows=72, stages=6)]  # a tile may begin with any slot


@pytest.mark.parametrize(
    "sizes",
    [
        {"weights": 96, "rows": 64, "stages": 4},
        {"weights": 128, "rows": 12, "stages": 4},  # not a multiple of 8
        {"weights": 128, "rows": 64, "stages": 1},  # a slab is still read when the next one arrives
        {"weights": 256, "rows": 184, "stages": 3},  # more sums than registers
        {"weights": 256, "rows": 176, "stages": 5},
    ],
)
def test_impossible_cuts_are_refused(sizes):
    with pytest.raises(ValueError, match=r"cut as|limit"):
        Cut(**sizes)


@pytest.mark.parametrize("multiprocessors", [114, 132])
def test_a_cut_covers_its_rows(multiprocessors):
    for inputs, outputs in SIZES:
        assert choose_cut(FEWEST_ROWS - 1, outputs, inputs, multiprocessors) is None
        chosen = set()
        for rows in range(FEWEST_ROWS, 3000):
            cut = choose_cut(rows, outputs, inputs, multiprocessors)
            if cut is None:
                continue
            chosen.add(cut)
            beside, blocks = cut.grid(rows, outputs, multiprocessors)
            assert beside * blocks <= multiprocessors
            assert blocks * cut.rows >= rows
            assert 2 * outputs % cut.weights == 0
        assert chosen == set(MANY)


def test_few_rows_have_cuts_of_their_own():
    for rows, cut in FEW.items():
        assert choose_cut(rows, 4096, 1024, 132) == cut
        beside, blocks = cut.grid(rows, 4096, 132)
        assert beside * blocks == 8192 // cut.weights * blocks <= 132
        assert blocks * cut.rows >= rows
        assert choose_cut(rows + 1, 4096, 1024, 132) is None


def test_rows_of_a_step_leave_few_multiprocessors_idle():
    """704, 1408 and 2816 rows, of 32, 64 and 128 streams, are divided without padding."""
    for rows, waves in ((704, 1), (1408, 2), (2816, 4)):
        cut = choose_cut(rows, 4096, 1024, 132)
        assert cut is not None
        beside, blocks = cut.grid(rows, 4096, 132)
        assert blocks * cut.rows == rows
        assert beside * blocks == 128
        assert 8192 / beside * cut.rows == waves * 256 * 176


@pytest.mark.parametrize("streams", [40, 48, 56, 72, 80, 96, 112])
def test_other_rows_of_a_step_that_divide_well_have_a_cut(streams):
    assert choose_cut(22 * streams, 4096, 1024, 132) is not None


@pytest.mark.parametrize("rows", [500, 600, 726, 768, 1100])
def test_rows_that_cublas_divides_better_have_no_cut(rows):
    assert choose_cut(rows, 4096, 1024, 132) is None


def test_other_sizes_have_no_cut():
    assert choose_cut(1408, 6144, 2048, 132) is None


def test_a_device_without_the_kernel_logs_the_reason_once(caplog):
    with caplog.at_level("INFO"):
        assert [load_cuts(torch.device("cpu", 7)) for _ in range(2)] == [False, False]
    assert caplog.text.count("not for cpu:7") == 1


@pytest.mark.parametrize("cut", ANY, ids=str)
def test_every_cut_compiles(compiles, cut):
    compiles(compile_gated_product, 1024, cut)


def operands(device, rows, inputs=512, outputs=512):
    generator = torch.Generator("cuda").manual_seed(rows + inputs + outputs)
    scale = torch.arange(1, rows + 1, device=device)[:, None]
    x = torch.randn(rows, inputs, generator=generator, device=device) * scale
    weight = torch.randn(2 * outputs, inputs, generator=generator, device=device) * 2 * inputs**-0.5
    return x.bfloat16(), weight.bfloat16()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 22, 88, 110, 176, 351, 1408])
@pytest.mark.parametrize("cut", ANY, ids=str)
def test_agrees_with_the_reference(device, cut, rows):
    x, weight = operands(device, rows)
    packets = new_packets(device)
    truth = reference.norm_gated(x.double(), EPS, weight.double())
    for _ in range(2):
        out = gated_product(x, EPS, weight, packets, cut)
        assert out.shape == truth.shape
        assert float((out.double() - truth).norm() / truth.norm()) < LIMIT


@pytest.mark.gpu
@pytest.mark.parametrize("cut", ANY, ids=str)
def test_launches_that_overlap_wait_for_each_other(device, cut):
    """A captured chain, in which each launch reads the result of the previous one, equals separate calls."""
    x, weight = operands(device, 300, 1024, 1024)
    packets = new_packets(device)

    def chain(pause):
        y = x
        for _ in range(6):
            y = gated_product(y, EPS, weight, packets, cut)
            pause()
        return y

    expected = chain(torch.cuda.synchronize)
    assert expected.isfinite().all()
    assert torch.equal(chain(lambda: None), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain(lambda: None)
    for _ in range(10):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, expected)


@pytest.mark.gpu
def test_sizes_and_addresses_that_do_not_fit_are_refused(device):
    x, weight = operands(device, 5, inputs=96)
    with pytest.raises(ValueError, match="96 inputs"):
        gated_product(x, EPS, weight, new_packets(device), CUTS[0])
    x, weight = operands(device, 5, inputs=128)
    with pytest.raises(ValueError, match="16 bytes"):
        gated_product(x.flatten()[1 : 1 + 4 * 128].view(4, 128), EPS, weight, new_packets(device), CUTS[0])
