"""The rows of a step are found where their definition finds them."""

import pytest
import torch

from voxcpm_grpc.kernels.rows import reference

SLOTS = 6


@pytest.mark.parametrize(("page_size", "pages"), [(16, 5), (32, 1), (16, 12)])
def test_rows_are_located(target, page_size, pages):
    pytest.importorskip("triton")
    from voxcpm_grpc.kernels.rows.locate_rows import locate_rows

    device, _ = target
    table = torch.randint(0, 1000, (SLOTS, 12), dtype=torch.int32, device=device)
    position = torch.randint(0, page_size * pages, (SLOTS, 8), device=device)[:, 5]  # a column of a table
    slot = torch.tensor([4, 0, 5, 5], device=device)
    expected = reference.locate_rows(slot, position, table, page_size, pages)
    for out, truth in zip(locate_rows(slot, position, table, page_size, pages), expected, strict=True):
        assert out.dtype == truth.dtype
        assert torch.equal(out, truth)
