"""The flow loop in few launches agrees with the plain loop."""

import pytest
import torch
from support.engines.checkpoints import OLDER, TINY

from voxcpm_grpc.models.voxcpm.flow.flow import PatchFlow, PlainFlow


@pytest.fixture
def interpreter():
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("with a GPU the kernels run there, not interpreted")


@pytest.mark.parametrize(("path", "streams"), [(TINY, 1), (TINY, 3), (OLDER[0], 2)])
def test_agrees_with_the_plain_loop_in_the_interpreter(interpreter, load, path, streams):
    plain, fused = load(path), load(path, fused=True)
    loop = PlainFlow(plain.networks.dit)
    assert type(fused.flow.batch) not in (PlainFlow, type(plain.flow.batch))
    generator = torch.Generator().manual_seed(streams)
    dit, frames = plain.networks.dit, plain.info.latents.frames
    shapes = ((8, frames), (dit.mu_tokens, dit.hidden), (frames, 8))
    noise, mu, condition = (torch.randn(streams, *shape, generator=generator) for shape in shapes)
    cfg = torch.rand(streams, generator=generator) * 3
    inputs = noise.transpose(1, 2), mu, condition, cfg, 4  # noise is drawn channel by channel
    expected = PatchFlow(plain.flow.schedules, single=loop, batch=loop)(*inputs)
    torch.testing.assert_close(fused.flow(*inputs), expected, atol=1e-4, rtol=1e-4)
