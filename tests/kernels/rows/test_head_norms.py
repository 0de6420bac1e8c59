"""The norms of heads agree with their definition for slices of one projection, and leave the values as they are."""

import pytest
import torch

from voxcpm_grpc.kernels.rows import reference


@pytest.mark.parametrize("shape", [(16, 8, 128), (4, 2, 16), (3, 1, 48)], ids=str)
def test_they_agree(target, agree, shape):
    pytest.importorskip("triton")

    from voxcpm_grpc.kernels.rows.head_norms import norm_heads

    device, dtype = target
    heads, groups, size = shape
    projection = torch.randn(5, heads + 2 * groups, size).to(device, dtype)
    first, second = ((1 + 0.3 * torch.randn(size)).to(device, dtype) for _ in range(2))
    expected = projection.clone()
    q, k, v = expected.split([heads, groups, groups], dim=1)
    reference.norm_heads(q, k, first, second, 1e-6)
    before = v.clone()
    q, k, v = projection.split([heads, groups, groups], dim=1)
    norm_heads(q, k, first, second, 1e-6)
    agree(projection, expected)
    assert torch.equal(v, before)
    with pytest.raises(ValueError, match="contiguous heads"):
        norm_heads(q.transpose(0, 1), k, first, second, 1e-6)
