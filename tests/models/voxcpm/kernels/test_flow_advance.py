"""The launch between two evaluations agrees with its definition: an Euler step, then the rows of the new latents."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from voxcpm_grpc.models.voxcpm.kernels import reference

pytest.importorskip("triton")
from voxcpm_grpc.kernels.cuda.compiler import KernelUnavailable
from voxcpm_grpc.models.voxcpm.kernels.flow_advance import (
    FlowWeights,
    _is_available,
    compile_flow_advance,
    flow_advance,
    serves,
)

LIMIT = 1e-2  # bfloat16 against float32
HIDDEN, LATENTS = 1024, 64
RELEASED = [(4, 2), (4, 1), (2, 1)]  # frames, mu tokens


@dataclass(frozen=True)
class Operands:
    made: Tensor
    weights: FlowWeights
    x: Tensor
    sizes: Tensor
    cfg: Tensor
    mu: Tensor
    time: Tensor
    condition: Tensor

    def advance(self, i=1):
        given = self.mu, self.time, self.condition
        return flow_advance(self.made, self.weights, self.x, self.sizes, i, self.cfg, *given)

    def rows_of(self, x):
        return reference.flow_rows(x, *self.weights.into, self.mu, self.time, self.condition)


def operands(streams, frames, mu_tokens, device):
    generator = torch.Generator().manual_seed(streams)

    def draw(*shape, scale=1.0, dtype=torch.bfloat16):
        return (torch.randn(shape, generator=generator) * scale).to(device, dtype)

    out = draw(LATENTS, HIDDEN, scale=HIDDEN**-0.5), draw(LATENTS)
    into = draw(HIDDEN, LATENTS, scale=LATENTS**-0.5), draw(HIDDEN)
    return Operands(
        made=draw(frames, 2 * streams, HIDDEN, scale=3),
        weights=FlowWeights(draw(HIDDEN), 1e-5, out, into),
        x=draw(streams, frames, LATENTS, dtype=torch.float32),
        sizes=draw(3, dtype=torch.float32),
        cfg=draw(streams, dtype=torch.float32).abs(),
        mu=draw(streams, mu_tokens, HIDDEN),
        time=draw(HIDDEN),
        condition=draw(streams, frames, HIDDEN),
    )


@pytest.mark.parametrize(("frames", "mu_tokens"), RELEASED)
def test_compiles(compiles, frames, mu_tokens):
    compiles(compile_flow_advance, frames, 1 if mu_tokens == 1 else 3)


def test_a_device_without_the_kernel_logs_the_reason_once(caplog):
    given = operands(2, 4, 2, "cpu")
    _is_available.cache_clear()
    with caplog.at_level("INFO"):
        assert not serves(given.weights, given.x, given.mu)
        assert not serves(given.weights, given.x, given.mu)
    assert caplog.text.count("not for cpu") == 1


@pytest.mark.parametrize(("frames", "mu_tokens"), RELEASED)
def test_operands_of_released_models_pass_the_checks(frames, mu_tokens):
    with pytest.raises(KernelUnavailable, match="not for cpu"):
        operands(2, frames, mu_tokens, "cpu").advance()


@pytest.mark.parametrize(
    "change",
    [
        lambda g: replace(g, made=g.made[:3]),
        lambda g: replace(g, x=torch.zeros(2, 6, LATENTS), made=torch.zeros(6, 4, HIDDEN).bfloat16()),
        lambda g: replace(g, mu=g.mu.repeat(1, 2, 1)),
        lambda g: replace(g, mu=g.mu[:1]),
        lambda g: replace(g, cfg=g.cfg[:1]),
        lambda g: replace(g, time=g.time[:512]),
        lambda g: replace(g, sizes=g.sizes[:1]),
        lambda g: replace(g, x=torch.zeros(2, 4, 32)),
        lambda g: replace(g, x=torch.zeros(2 * 4 * LATENTS + 1)[1:].view(2, 4, LATENTS)),
        lambda g: replace(g, x=g.x.bfloat16()),
        lambda g: replace(g, condition=g.condition.transpose(0, 1).contiguous().transpose(0, 1)),
        lambda g: replace(g, time=torch.zeros(HIDDEN + 1).bfloat16()[1:]),
        lambda g: replace(g, weights=replace(g.weights, out=(torch.zeros(32, HIDDEN).bfloat16(), g.weights.out[1]))),
        lambda g: replace(g, weights=replace(g.weights, norm=g.weights.norm.half())),
    ],
)
def test_other_operands_are_refused(change):
    with pytest.raises(ValueError, match=r"the kernel does not take|tensors must be contiguous"):
        change(operands(2, 4, 2, "cpu")).advance()


def error(out, truth):
    return float((out.double() - truth.double()).norm() / truth.double().norm())


@pytest.mark.gpu
@pytest.mark.parametrize(("frames", "mu_tokens"), RELEASED)
@pytest.mark.parametrize("streams", [1, 2, 3, 8, 61])
def test_agrees_with_the_reference(device, streams, frames, mu_tokens):
    given = operands(streams, frames, mu_tokens, device)
    assert serves(given.weights, given.x, given.mu)
    x, rows, squares = given.advance()
    weights = given.weights
    made, norm, weight, bias = (part.float() for part in (given.made, weights.norm, *weights.out))
    truth = reference.flow_step(made, norm, weights.eps, weight, bias, given.x, given.sizes, 1, given.cfg)
    assert error(x - given.x, truth - given.x) < LIMIT
    expected = given.rows_of(x)
    fixed = expected.shape[0] - frames
    assert torch.equal(rows[:fixed], expected[:fixed])
    assert error(rows[fixed:], expected[fixed:]) < LIMIT
    torch.testing.assert_close(squares.sum(0), rows.float().square().sum(-1).flatten())


@pytest.mark.gpu
def test_a_stream_does_not_read_another_one(device):
    given = operands(5, 4, 2, device)
    x, rows, squares = given.advance()
    for part, dim in ((given.x, 0), (given.mu, 0), (given.condition, 0)):
        part.select(dim, 2).fill_(float("nan"))
    given.made[:, [2, 7]] = float("nan")
    others = [0, 1, 3, 4]
    changed = given.advance()
    assert torch.equal(changed[0][others], x[others])
    both = [*others, *(5 + i for i in others)]
    assert torch.equal(changed[1][:, both], rows[:, both])
    assert torch.equal(changed[2].view(8, 11, 10)[..., both], squares.view(8, 11, 10)[..., both])


@pytest.mark.gpu
@pytest.mark.parametrize("streams", [2, 64])
def test_launches_that_overlap_wait_for_each_other(replays_equal_calls, device, streams):
    """Each launch reads the result of the previous one."""
    given = operands(streams, 4, 2, device)

    def chain(pause):
        x, made = given.x, given.made
        for i in (0, 1, 2) * 3:
            x, rows, _ = replace(given, x=x, made=made).advance(i)
            made = rows[7:]
            pause()
        return torch.cat([x.flatten(), made.float().flatten()])

    replays_equal_calls(chain)
