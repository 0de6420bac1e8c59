"""Fused row operations agree with the separate operations."""

import pytest
import torch

from voxcpm_grpc.kernels.rows import reference


@pytest.fixture
def fused_rowwise():
    pytest.importorskip("triton")

    from voxcpm_grpc.kernels.rows import fused_rowwise

    return fused_rowwise


@pytest.mark.parametrize("channels", [32, 200, 2048])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm(fused_rowwise, target, agree, channels, weighted):
    device, dtype = target
    x = torch.randn(7, channels).to(device, dtype)
    weight = torch.randn(channels).to(device, dtype) if weighted else None
    agree(fused_rowwise.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("channels", [16, 1500])
@pytest.mark.parametrize("inputs", [40, 2048])
def test_norm_swiglu(fused_rowwise, target, agree, channels, inputs):
    device, dtype = target
    gate_up, x = (torch.randn(5, n).to(device, dtype) for n in (2 * channels, inputs))
    agree(fused_rowwise.norm_swiglu(gate_up, 3 * x, 1e-5), reference.norm_swiglu(gate_up, 3 * x, 1e-5))


@pytest.mark.parametrize("channels", [16, 1500])
def test_swiglu(fused_rowwise, target, agree, channels):
    device, dtype = target
    gate_up = torch.randn(5, 2 * channels).to(device, dtype)
    agree(fused_rowwise.swiglu(gate_up), reference.swiglu(gate_up))
