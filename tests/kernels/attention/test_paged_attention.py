"""The attention kernel agrees with its reference for every tile, split and page size."""

from typing import Any

import pytest
import torch

from voxcpm_grpc.kernels.attention import reference

pytestmark = pytest.mark.thorough

SHAPES = [(2, 1, 8), (4, 2, 8), (16, 2, 128), (3, 1, 24), (8, 1, 64)]  # query heads, KV heads, head size


@pytest.fixture
def kernel():
    pytest.importorskip("triton")
    from voxcpm_grpc.kernels.attention.paged_attention import paged_attention

    return paged_attention


def random_pages(target, rows, cached, page_size, heads, groups, size):
    """Arguments of `paged_attention`: shuffled pages, NaN outside every context, a loose bound of the context."""
    device, dtype = target
    generator = torch.Generator().manual_seed(sum(rows) + sum(cached))
    context = torch.tensor(rows) + torch.tensor(cached)
    used = (context + page_size - 1) // page_size
    total = int(used.sum()) + 2
    pages = torch.randn(2, total, page_size, groups, size, generator=generator)
    order = torch.randperm(total - 2, generator=generator) + 1
    table = torch.full((len(rows), int(used.max()) + 1), total - 1)
    owned = torch.zeros(total, page_size, dtype=torch.bool)
    for i, (mine, n) in enumerate(zip(order.split(used.tolist()), context.tolist(), strict=True)):
        table[i, : len(mine)] = mine
        owned[mine] = torch.arange(len(mine) * page_size).view(-1, page_size) < n
    pages[:, ~owned] = float("nan")
    q = torch.randn(sum(rows), heads, size, generator=generator)
    starts = torch.tensor([0, *rows]).cumsum(0)
    k_pages, v_pages = pages.to(device, dtype)
    integers = (x.to(device, torch.int32) for x in (starts, context, table))
    return q.to(device, dtype), k_pages, v_pages, *integers, max(rows), int(context.max()) + 40


def truth(arguments):
    exact: list[Any] = [x.float() if torch.is_tensor(x) and x.is_floating_point() else x for x in arguments]
    return reference.paged_attention(*exact)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("splits", [None, 3])
def test_decode(kernel, target, agree, shape, splits):
    arguments = random_pages(target, [1] * 5, [0, 1, 15, 16, 130], 16, *shape)
    agree(kernel(*arguments, splits=splits), truth(arguments))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("splits", [None, 2])
def test_chunks_with_and_without_cached_context(kernel, target, agree, shape, splits):
    arguments = random_pages(target, [1, 40, 3, 17], [70, 0, 33, 31], 16, *shape)
    agree(kernel(*arguments, splits=splits), truth(arguments))


@pytest.mark.parametrize("rows", [[1, 1], [2, 50]], ids=["decode", "chunk"])
def test_larger_pages(kernel, target, agree, rows):
    arguments = random_pages(target, rows, [31, 90], 32, 4, 2, 8)
    agree(kernel(*arguments), truth(arguments))


@pytest.mark.parametrize("rows", [[1, 1], [5, 90]], ids=["decode", "chunk"])
def test_long_contexts_split_by_the_device(kernel, target, agree, rows):
    arguments = random_pages(target, rows, [1500, 600], 16, 16, 2, 16)
    agree(kernel(*arguments), truth(arguments))


@pytest.mark.parametrize("count", [100, 140])
def test_as_many_chunks_as_a_large_engine_prefills_at_once(kernel, target, agree, count):
    """A compilation serves a bounded number of chunks."""
    rows = [12 if i % 7 == 0 else 1 for i in range(count)]
    arguments = random_pages(target, rows, [i % 20 for i in range(count)], 16, 4, 1, 8)
    agree(kernel(*arguments, splits=1), truth(arguments))


@pytest.mark.parametrize("splits", [1, 2])
def test_queries_may_be_a_slice_of_a_fused_projection(kernel, target, agree, splits):
    q, *rest = random_pages(target, [4, 9], [0, 20], 16, 4, 2, 8)
    fused = torch.randn(q.shape[0], 8, 8).to(q)
    fused[:, :4] = q
    agree(kernel(fused[:, :4], *rest, splits=splits), truth((q, *rest)))


def test_an_idle_row_gives_zeros_and_does_not_affect_others(kernel, target, agree):
    q, k_pages, v_pages, starts, context, table, *bounds = random_pages(target, [1] * 3, [20, 5, 40], 16, 4, 2, 8)
    expected = truth((q, k_pages, v_pages, starts, context, table, *bounds))
    context[1] = 0
    for splits in (1, 2):
        out = kernel(q, k_pages, v_pages, starts, context, table, *bounds, splits=splits)
        assert out[1].abs().max() == 0
        agree(out[[0, 2]], expected[[0, 2]])


def test_heads_that_are_not_contiguous_are_refused(kernel, target):
    q, *rest = random_pages(target, [3], [4], 16, 4, 2, 8)
    with pytest.raises(ValueError, match="contiguous"):
        kernel(q.transpose(0, 1).contiguous().transpose(0, 1), *rest)
