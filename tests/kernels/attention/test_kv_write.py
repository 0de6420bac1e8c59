"""Keys and values are written to their slots and nowhere else, with and without rotation."""

import pytest
import torch

from voxcpm_grpc.kernels.attention import reference


@pytest.fixture
def kv_write():
    pytest.importorskip("triton")

    from voxcpm_grpc.kernels.attention import kv_write

    return kv_write


def random_rows(target, rows, heads, groups, size):
    """q, k and v as slices of one fused projection, NaN pages and the slots to write."""
    device, dtype = target
    fused = torch.randn(rows, heads + 2 * groups, size).to(device, dtype)
    q, k, v = fused.split([heads, groups, groups], dim=1)
    pages = torch.full((2, 5, 16, groups, size), float("nan"), device=device, dtype=dtype)
    return q, k, v, pages, torch.randperm(80)[:rows].to(device)


@pytest.mark.parametrize(("groups", "size"), [(2, 8), (1, 24), (2, 128)])
def test_write_kv(kv_write, target, groups, size):
    _, k, v, pages, write = random_rows(target, 37, 4, groups, size)
    expected = pages.clone()
    reference.write_kv(k, v, expected[0], expected[1], write)
    kv_write.write_kv(k, v, *pages, write)
    assert torch.equal(pages.nan_to_num(7), expected.nan_to_num(7))
    assert pages.isnan().any()


@pytest.mark.parametrize(("heads", "groups", "size"), [(4, 2, 8), (3, 1, 24), (16, 2, 128)])
def test_rope_write_kv(kv_write, target, agree, heads, groups, size):
    q, k, v, pages, write = random_rows(target, 19, heads, groups, size)
    angle = torch.randint(0, 300, (19, 1)) * 100 ** -torch.linspace(0, 1, size // 2)
    cos, sin = (f(angle).to(q.device) for f in (torch.cos, torch.sin))
    expected = pages.clone()
    rotated = reference.rope_write_kv(q, k, v, cos, sin, expected[0], expected[1], write)
    agree(kv_write.rope_write_kv(q, k, v, cos, sin, *pages, write), rotated)
    assert torch.equal(pages.isnan(), expected.isnan())
    agree(pages.nan_to_num(0), expected.nan_to_num(0))


def test_pages_that_are_not_contiguous_are_refused(kv_write, target):
    _, k, v, pages, write = random_rows(target, 3, 4, 2, 8)
    with pytest.raises(ValueError, match="contiguous"):
        kv_write.write_kv(k, v, pages[0, :, ::2], pages[1, :, ::2], write)
