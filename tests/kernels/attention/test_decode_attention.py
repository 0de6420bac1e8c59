"""Rotation, KV write and attention of one new row of each sequence agree with the separate definitions."""

from typing import Any

import pytest
import torch
from support.engines.contexts import step

from voxcpm_grpc.kernels.attention import reference
from voxcpm_grpc.kernels.launch.counters import COUNT, counters

pytestmark = pytest.mark.thorough

MANY = [1, 2, 16, 17, 131, 64, 33, 34, 97, 500]  # contexts of a launch that adds parts up by itself
SHAPES = [(2, 1, 8), (4, 2, 8), (16, 2, 128), (3, 1, 24)]  # query heads, KV heads, head size


@pytest.fixture
def kernel():
    pytest.importorskip("triton")
    from voxcpm_grpc.kernels.attention.decode_attention import decode_attention

    return decode_attention


def check(kernel, agree, arguments, **options):
    exact: list[Any] = [x.float() if torch.is_tensor(x) and x.is_floating_point() else x for x in arguments]
    exact[5:7] = (pages.clone() for pages in exact[5:7])
    norms = {name: options[name] for name in ("gains", "eps") if name in options}
    if gains := norms.get("gains"):
        norms["gains"] = tuple(gain.float() for gain in gains)
    truth = reference.decode_attention(*exact, **norms)
    agree(kernel(*arguments, **options), truth)
    for stored, expected in zip(arguments[5:7], exact[5:7], strict=True):
        assert torch.equal(stored.isnan(), expected.isnan())
        agree(stored.nan_to_num(0), expected.nan_to_num(0))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("splits", [None, 1, 3])
def test_agrees_with_the_reference(kernel, target, agree, shape, splits):
    check(kernel, agree, step(target, [1, 2, 16, 17, 131], *shape), splits=splits)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("splits", [1, 11])
def test_the_last_program_of_a_context_adds_the_parts_up(kernel, target, agree, shape, splits):
    arguments = step(target, MANY, *shape)
    for _ in range(2):  # a launch leaves the counters as the next one needs them
        check(kernel, agree, arguments, splits=splits)
        assert not counters(arguments[0].device, COUNT).any()


@pytest.mark.parametrize("splits", [1, 2])
def test_rows_without_rotation(kernel, target, agree, splits):
    check(kernel, agree, step(target, [40, 3], 4, 2, 8, rotated=False), splits=splits)


@pytest.mark.parametrize("shape", [(4, 2, 8), (16, 8, 128), (3, 1, 24)], ids=str)
@pytest.mark.parametrize(
    ("contexts", "splits", "rotated"),
    [
        *(([1, 2, 16, 131], None, rotated) for rotated in (True, False)),
        *(([70, 3], 3, rotated) for rotated in (True, False)),
        *((MANY, 1, True), (MANY, 11, True)),  # a head is rotated before its context is read
    ],
)
def test_heads_with_norms(kernel, target, agree, shape, contexts, splits, rotated):
    gains = tuple((1 + 0.3 * torch.randn(shape[2])).to(*target) for _ in "qk")
    arguments = step(target, contexts, *shape, rotated=rotated)
    check(kernel, agree, arguments, splits=splits, gains=gains, eps=1e-6)


def test_gains_of_another_size_are_refused(kernel, target):
    gains = (torch.ones(8).to(*target), torch.ones(4).to(*target))
    with pytest.raises(ValueError, match="have 8 values"):
        kernel(*step(target, [3], 4, 2, 8), gains=gains, eps=1e-6)


def test_long_contexts(kernel, target, agree):
    check(kernel, agree, step(target, [1500, 600], 16, 2, 16))


@pytest.mark.parametrize("sequences", [2, 8])
@pytest.mark.parametrize("splits", [1, 2])
def test_an_idle_row_gives_zeros(kernel, target, sequences, splits):
    arguments = step(target, [20, 5, *range(40, 38 + sequences)], 4, 2, 8)
    arguments[7][1] = 0
    arguments[9][1] = 3  # the scratch page
    out = kernel(*arguments, splits=splits)
    assert out[1].abs().max() == 0
    assert out.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("contexts", [[500], [60] * 8], ids=["two launches", "one launch"])
def test_the_first_layer_waits_for_what_it_reads_early(kernel, contexts):
    """A product that lets the next kernel start at once makes the keys."""
    from voxcpm_grpc.kernels.launch.graph import Graph, GraphPool, Priority
    from voxcpm_grpc.kernels.products.skinny_gemm import Tile, norm_linear

    device = torch.device("cuda", torch.cuda.current_device())
    q, k, v, cos, sin, pages, *rest = step((device, torch.bfloat16), contexts, 16, 2, 128)
    x = torch.randn(pages.numel() // 2048, 8192, dtype=torch.bfloat16, device=device) / 90
    weight = torch.randn(2048, 8192, dtype=torch.bfloat16, device=device)

    def chain():
        keys = norm_linear(x, None, 1e-5, weight, Tile(rows=64, columns=64, depth=128)).view(pages.shape)
        return keys, kernel(q, k, v, cos, sin, keys, *rest, first=True, splits=2)

    chain()  # compiles
    torch.cuda.synchronize()
    graph = Graph(chain, GraphPool(Priority.STEP, device))
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    keys, out = graph.output
    given = q, k, v, cos, sin, keys, *rest
    exact: list[Any] = [y.float() if torch.is_tensor(y) and y.is_floating_point() else y for y in given]
    truth = reference.decode_attention(*exact)
    assert (out.float() - truth).norm() < 1e-2 * truth.norm()
