"""Attention of one new row over its context in registers, for each cut, agrees with its definition."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.engines.contexts import step

from voxcpm_grpc.kernels.attention import reference

pytest.importorskip("triton")
from voxcpm_grpc.kernels.attention.context_attention import (
    CUTS,
    Cut,
    Sizes,
    _load_all,
    choose_cut,
    compile_context_attention,
    context_attention,
    find_cut,
)
from voxcpm_grpc.kernels.launch.graph import Graph, GraphPool, Priority
from voxcpm_grpc.kernels.products.skinny_gemm import Tile, norm_linear

LIMIT = 6e-3  # bfloat16 against float32
SHAPE = (16, 2, 128)  # query heads, KV heads, head size
CONTEXTS = [1, 2, 16, 17, 131, 64, 33, 34, 97, 500, 1025, 48]
RELEASED = Sizes(groups=2, page=16, rotate=True)
# Those of the released sizes, and others whose warps have several tiles.
ALL = [*(cut for _, cut in CUTS), Cut(warps=1), Cut(warps=2, splits=8, ahead=2)]


def test_streams_have_the_cut_that_was_measured():
    assert choose_cut(1) is None
    assert choose_cut(2) == choose_cut(8) == Cut(warps=4, splits=4, resident=2)
    assert choose_cut(16) == choose_cut(64) == choose_cut(200) == Cut(warps=8, ahead=2)


@pytest.mark.parametrize(
    "change",
    [
        {},  # on a CPU
        {"shape": (16, 2, 64)},
        {"shape": (4, 2, 128)},
        {"page": 8},
        {"dtype": torch.float32},
    ],
    ids=str,
)
def test_calls_that_the_kernel_does_not_take_are_refused(change):
    shape, page = change.get("shape", SHAPE), change.get("page", 16)
    target = ("cpu", change.get("dtype", torch.bfloat16))
    q, k, v, cos, sin, keys, values, *rest = step(target, [5, 6], *shape, page=page)
    assert find_cut(q, k, v, cos, keys, values) is None
    if change:
        with pytest.raises(ValueError, match="does not serve"):
            context_attention(q, k, v, cos, sin, keys, values, *rest[:3], cut=ALL[0])


def test_pages_that_are_not_contiguous_are_refused():
    q, k, v, cos, sin, keys, values, *rest = step(("cpu", torch.bfloat16), [50, 60], *SHAPE)
    with pytest.raises(ValueError, match="does not serve"):
        context_attention(q, k, v, cos, sin, keys[::2], values[::2], *rest[:3], cut=ALL[0])


def test_a_device_without_the_kernel_logs_the_reason_once(caplog):
    with caplog.at_level("INFO"):
        assert [_load_all(RELEASED, torch.device("cpu", 7)) for _ in range(2)] == [False, False]
    assert caplog.text.count("not for cpu:7") == 1


@pytest.mark.parametrize("cut", ALL, ids=str)
@pytest.mark.parametrize("change", [{}, {"rotate": False}, {"page": 32}], ids=str)
def test_every_cut_compiles(compiles, cut, change):
    compiles(compile_context_attention, replace(RELEASED, **change), cut)


def check(arguments, cut):
    *arguments, longest = arguments
    truth, *pages = reference_of(arguments, longest)
    for out in [context_attention(*arguments, cut=cut, first=first) for first in (True, False)]:
        assert float((out.double() - truth.double()).norm() / truth.double().norm()) < LIMIT
    for stored, expected in zip(arguments[5:7], pages, strict=True):
        assert torch.equal(stored.isnan(), expected.isnan())
        assert (stored.nan_to_num(0) - expected.nan_to_num(0)).norm() < LIMIT * expected.nan_to_num(0).norm()


def reference_of(arguments, longest):
    """The result and the pages in float32. The arguments stay as they are."""
    exact: list[Any] = [x.float() if torch.is_tensor(x) and x.is_floating_point() else x for x in arguments]
    return reference.decode_attention(*exact, max_context=longest), *exact[5:7]


@pytest.mark.gpu
@pytest.mark.parametrize("cut", ALL, ids=str)
@pytest.mark.parametrize("change", [{}, {"rotated": False}, {"page": 32}], ids=str)
def test_agrees_with_the_reference(device, cut, change):
    check(step((device, torch.bfloat16), CONTEXTS, *SHAPE, **change), cut)


@pytest.mark.gpu
@pytest.mark.parametrize("cut", ALL, ids=str)
@pytest.mark.parametrize("contexts", [[3001], [8190, 7], [1] * 200], ids=["long", "unequal", "short"])
def test_other_contexts(device, cut, contexts):
    check(step((device, torch.bfloat16), contexts, *SHAPE), cut)


@pytest.mark.gpu
@pytest.mark.parametrize("cut", ALL, ids=str)
def test_an_idle_row_gives_zeros(device, cut):
    arguments = step((device, torch.bfloat16), [20, 5, *range(40, 46)], *SHAPE)[:-1]
    arguments[7][1] = 0
    arguments[9][1] = 3  # the scratch page
    out = context_attention(*arguments, cut=cut)
    assert out[1].abs().max() == 0
    assert out.isfinite().all()


@pytest.mark.gpu
def test_a_call_with_the_released_sizes_has_a_cut(device):
    q, k, v, cos, _, keys, values, *_ = step((device, torch.bfloat16), [60] * 8, *SHAPE)
    assert find_cut(q, k, v, cos, keys, values) == choose_cut(8)


@pytest.mark.gpu
@pytest.mark.parametrize("cut", ALL, ids=str)
def test_launches_that_overlap_wait_for_each_other(replays_equal_calls, device, cut):
    """Each launch reads the result of the previous one, in two graphs that run at the same time."""

    def chain_of(contexts):
        arguments = step((device, torch.bfloat16), contexts, *SHAPE)[:-1]

        def chain(pause):
            q, *others = arguments
            for i in range(6):
                q = context_attention(q, *others, cut=cut, first=i == 0)
                pause()
            return q

        return chain

    replays_equal_calls(chain_of([60, 200, 33, 500]), chain_of([90] * 64))


@pytest.mark.gpu
@pytest.mark.parametrize("cut", ALL, ids=str)
def test_replays_follow_the_contexts(device, cut):
    arguments = step((device, torch.bfloat16), [1, 17, 33, 97, 513], *SHAPE)[:-1]
    _, k, v, *_, context, _, write = arguments

    def launches():
        return [context_attention(*arguments, cut=cut, first=first) for first in (True, False)]

    launches()  # compiles
    graph = Graph(launches, GraphPool(Priority.STEP, device))
    for _ in range(10):
        graph.replay()
        torch.cuda.synchronize()
        truth, *_ = reference_of(arguments, 600)
        for out in graph.output:
            assert (out.float() - truth).norm() < LIMIT * truth.norm()
        for x in (context, write):
            x += 1
        for x in (k, v):
            x.normal_()


@pytest.mark.gpu
@pytest.mark.parametrize("cut", ALL, ids=str)
def test_the_first_layer_waits_for_what_it_reads_early(device, cut):
    """A product that lets the next kernel start at once makes the keys."""
    q, k, v, cos, sin, pages, *rest = step((device, torch.bfloat16), [60] * 8, *SHAPE)
    x = torch.randn(pages.numel() // 2048, 8192, dtype=torch.bfloat16, device=device) / 90
    weight = torch.randn(2048, 8192, dtype=torch.bfloat16, device=device)

    def chain():
        keys = norm_linear(x, None, 1e-5, weight, Tile(rows=64, columns=64, depth=128)).view(pages.shape)
        return keys, context_attention(q, k, v, cos, sin, keys, *rest[:-1], cut=cut)

    chain()  # compiles
    torch.cuda.synchronize()
    graph = Graph(chain, GraphPool(Priority.STEP, device))
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    keys, out = graph.output
    truth, *_ = reference_of((q, k, v, cos, sin, keys, *rest[:-1]), rest[-1])
    assert (out.float() - truth).norm() < 1e-2 * truth.norm()
