"""Products on Hopper's own units agree with their definitions, however a launch is cut and whatever the rows."""

import pytest
import torch

from voxcpm_grpc.kernels import reference
from voxcpm_grpc.kernels.cuda_code import KernelUnavailable

pytest.importorskip("triton")
from voxcpm_grpc.kernels import product
from voxcpm_grpc.kernels.product import Cut, Role

LIMIT = 1e-2  # bfloat16 against float32
CUTS = [
    Cut(rows=8, outputs=64, stages=8, resident=2),
    Cut(rows=16, outputs=64, stages=4, splits=4, resident=2),
    Cut(rows=24, outputs=64, stages=8, splits=2),
    Cut(rows=64, outputs=128, stages=4, splits=2),
    Cut(rows=88, outputs=128, stages=5),
    Cut(rows=112, outputs=128, stages=5, share=2),
    Cut(rows=176, outputs=64, stages=6, share=2),
    Cut(rows=176, outputs=128, stages=4),
    Cut(rows=176, outputs=128, stages=4, splits=2),
    Cut(rows=176, outputs=256, stages=3, share=2),
    Cut(rows=256, outputs=128, stages=3),
]


@pytest.mark.parametrize(
    ("cut", "role"),
    [
        (Cut(rows=12, outputs=64, stages=4), Role.LINEAR),  # rows come in eights
        (Cut(rows=64, outputs=96, stages=4), Role.LINEAR),
        (Cut(rows=64, outputs=64, stages=30), Role.LINEAR),  # more shared memory than there is
        (Cut(rows=64, outputs=64, stages=8, resident=2), Role.LINEAR),
        (Cut(rows=88, outputs=64, stages=4, share=2), Role.LINEAR),  # 44 rows a block
        (Cut(rows=64, outputs=64, stages=1), Role.GATED),  # a slab is still read when the next one comes
        (Cut(rows=64, outputs=64, stages=4, share=2, splits=2), Role.ADD),
    ],
)
def test_impossible_cuts_are_refused(cut, role):
    with pytest.raises(ValueError, match="no block can be cut"):
        product.compile_product(role, cut)


def test_every_cut_compiles():
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the run-time compiler, which comes with PyTorch for CUDA")
    for cut in CUTS:
        for role in Role:
            try:
                assert product.compile_product(role, cut)
            except ValueError:
                assert cut.shared(role) > product.SHARED_BYTES // cut.resident - product.OWN_BYTES
            except KernelUnavailable as error:
                if "no compiler" not in str(error):
                    raise
                pytest.skip(str(error))


@pytest.fixture
def device():
    device = torch.device("cuda", 0)
    if torch.cuda.get_device_capability(device) != (9, 0):
        pytest.skip("the kernel is written for compute capability 9.0")
    return device


def operands(device, rows, inputs, outputs):
    generator = torch.Generator("cuda").manual_seed(rows + inputs + outputs)
    x, residual = (torch.randn(rows, n, generator=generator, device=device).bfloat16() for n in (inputs, outputs))
    weight = torch.randn(outputs, inputs, generator=generator, device=device) * inputs**-0.5
    return x, residual, weight.bfloat16()


def fits(cut, role):
    return cut.shared(role) + product.OWN_BYTES <= product.SHARED_BYTES // cut.resident


def near(out, truth):
    assert out.shape == truth.shape
    error = float((out.double() - truth.double()).norm() / truth.double().norm())
    assert error < LIMIT, f"relative error {error:.2e}"


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 22, 176, 351, 1408])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_agrees_with_the_reference(device, cut, rows):
    x, residual, weight = operands(device, rows, 512, 1024)
    squares = x.float().square().view(rows, 4, -1).sum(-1).t().contiguous()
    exact = x.float(), weight.float(), residual.float()
    if fits(cut, Role.LINEAR):
        normed = reference.norm_linear(exact[0], 1e-5, exact[1])
        for given, truth in ((squares, normed), (None, torch.nn.functional.linear(exact[0], exact[1]))):
            for _ in range(2):
                near(product.norm_linear(x, given, 1e-5, weight, cut), truth)
    near(product.norm_gated(x, squares, 1e-5, weight, cut), reference.norm_gated(exact[0], 1e-5, exact[1]))
    if fits(cut, Role.ADD):
        out, made = product.linear_add(x, weight, residual, 0.5, cut)
        near(out, reference.linear_add(exact[0], exact[1], exact[2], 0.5))
        torch.testing.assert_close(made.sum(0), out.float().square().sum(1))


@pytest.mark.gpu
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_launches_that_overlap_wait_for_each_other(device, cut):
    """A chain in which every launch reads what the one before wrote, captured, gives what separate calls give."""
    x, _, weight = operands(device, 300, 1024, 1024)
    wide = operands(device, 1, 1024, 2048)[2]
    add = fits(cut, Role.ADD)

    def chain(pause):
        y, squares = x, x.float().square().sum(1)[None]
        for _ in range(6):
            mixed = product.norm_linear(y, squares, 1e-5, weight, cut) if fits(cut, Role.LINEAR) else y
            pause()
            if add:
                y, squares = product.linear_add(mixed, weight, y, 1.0, cut)
                pause()
            mixed = product.norm_gated(y, squares if add else None, 1e-5, wide, cut)
            pause()
            y = y + mixed
            squares = y.float().square().sum(1)[None]
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
def test_sizes_and_places_that_do_not_fit_are_refused(device):
    x, residual, weight = operands(device, 5, 96, 128)
    with pytest.raises(ValueError, match="96 inputs"):
        product.linear_add(x, weight, residual, 1.0, CUTS[0])
    x, residual, weight = operands(device, 5, 128, 128)
    with pytest.raises(ValueError, match="16 bytes"):
        product.norm_linear(x.flatten()[1 : 1 + 4 * 128].view(4, 128), None, 1e-5, weight, CUTS[0])
