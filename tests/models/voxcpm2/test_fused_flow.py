"""The flow loop in few launches agrees with the plain loop."""

import pytest
import torch

from voxcpm_grpc.models.voxcpm2.flow import PlainFlow


@pytest.fixture
def interpreter():
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("with a GPU the kernels run there, not interpreted")


@pytest.mark.parametrize("streams", [1, 3])
def test_agrees_with_the_plain_loop_in_the_interpreter(interpreter, load, streams):
    plain, fused = load(), load(fused=True)
    assert isinstance(plain.flow.batch, PlainFlow)
    assert not isinstance(fused.flow.batch, PlainFlow)
    generator = torch.Generator().manual_seed(streams)
    shapes = ((8, 4), (2, plain.networks.dit.hidden), (4, 8))
    noise, mu, condition = (torch.randn(streams, *shape, generator=generator) for shape in shapes)
    cfg = torch.rand(streams, generator=generator) * 3
    inputs = noise.transpose(1, 2), mu, condition, cfg, 4  # noise is drawn channel by channel
    torch.testing.assert_close(fused.flow(*inputs), plain.flow(*inputs), atol=1e-4, rtol=1e-4)
