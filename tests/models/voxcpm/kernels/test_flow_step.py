"""The input rows and the Euler step of an evaluation agree with their definitions."""

import pytest
import torch

from voxcpm_grpc.models.voxcpm.kernels import reference

SIZES = [(1, 4, 64, 1024), (5, 4, 8, 20), (3, 2, 24, 200)]  # streams, frames, latent channels, hidden size


@pytest.fixture
def flow_step():
    pytest.importorskip("triton")

    from voxcpm_grpc.models.voxcpm.kernels import flow_step

    return flow_step


@pytest.fixture
def draw(target):
    generator = torch.Generator().manual_seed(1)
    return lambda *shape: torch.randn(shape, generator=generator).to(*target)


@pytest.mark.parametrize(("sizes", "mu_tokens"), [*((sizes, 2) for sizes in SIZES), (SIZES[0], 1), (SIZES[2], 1)])
def test_rows(flow_step, agree, draw, sizes, mu_tokens):
    streams, frames, latents, hidden = sizes
    x = draw(streams, frames, latents).float()
    mu = draw(streams, mu_tokens, hidden)
    given = [draw(hidden, latents), draw(hidden), mu, draw(hidden), draw(streams, frames, hidden)]
    rows, squares = flow_step.flow_rows(x, *given)
    truth = reference.flow_rows(x.to(given[0].dtype).float(), *(part.float() for part in given))
    agree(rows, truth)
    if mu_tokens == 1:
        assert (rows[0, streams:] == given[3]).all(), "the time alone, without mu"
    else:
        assert not rows[:2, streams:].any()
    torch.testing.assert_close(squares.sum(0), rows.float().square().sum(-1).flatten())


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_step(flow_step, agree, draw, sizes):
    streams, frames, latents, hidden = sizes
    rows = draw(frames, 2 * streams, hidden) * 3
    norm, weight, bias = draw(hidden), draw(latents, hidden) / hidden**0.5, draw(latents)
    x, sizes_, cfg = draw(streams, frames, latents).float(), draw(3).float(), draw(streams).float().abs()
    exact = [part.float() for part in (rows, norm, weight, bias)]
    truth = reference.flow_step(exact[0], exact[1], 1e-5, exact[2], exact[3], x, sizes_, 1, cfg)
    out = flow_step.flow_step(rows, norm, 1e-5, weight, bias, x, sizes_, 1, cfg)
    agree(out - x, truth - x)


def test_longer_patches_are_refused(flow_step, draw):
    with pytest.raises(ValueError, match="7 frames"):
        flow_step.flow_rows(draw(1, 7, 8).float(), draw(16, 8), draw(16), draw(1, 2, 16), draw(16), draw(1, 7, 16))
