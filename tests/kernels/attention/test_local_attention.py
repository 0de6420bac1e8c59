"""Attention inside short sequences agrees with its definition, also for slices of one projection."""

import pytest
import torch

from voxcpm_grpc.kernels.attention import reference

pytestmark = pytest.mark.thorough


@pytest.fixture
def kernel():
    pytest.importorskip("triton")
    from voxcpm_grpc.kernels.attention.local_attention import local_attention

    return local_attention


def projected(target, sequences, tokens, heads, groups, size):
    device, dtype = target
    fused = torch.randn(tokens, sequences, heads + 2 * groups, size).to(device, dtype)
    angle = torch.arange(tokens)[:, None] * 10 ** -torch.linspace(0, 2, size // 2)
    return *fused.split([heads, groups, groups], dim=2), angle.cos().to(device), angle.sin().to(device)


@pytest.mark.parametrize("tokens", [1, 5, 11, 16])
@pytest.mark.parametrize("shape", [(16, 2, 128), (4, 1, 24), (3, 3, 8)], ids=str)
def test_agrees_with_the_reference(kernel, target, agree, tokens, shape):
    arguments = projected(target, 3, tokens, *shape)
    agree(kernel(*arguments), reference.local_attention(*(x.float() for x in arguments)))


def test_without_rotation(kernel, target, agree):
    q, k, v, *_ = projected(target, 2, 5, 4, 2, 16)
    agree(kernel(q, k, v, None, None), reference.local_attention(q.float(), k.float(), v.float(), None, None))


@pytest.mark.parametrize("heads", [2, 4, 8])
def test_heads_may_share_a_program(kernel, target, agree, heads):
    arguments = projected(target, 2, 11, 16, 2, 32)
    agree(kernel(*arguments, heads=heads), reference.local_attention(*(x.float() for x in arguments)))


@pytest.mark.parametrize("channels", [40, 256, 1000])
@pytest.mark.parametrize("rotated", [True, False])
def test_a_late_norm_agrees_with_the_reference(kernel, target, agree, channels, rotated):
    """The rows differ in size by orders of magnitude, so that a scale applied to the wrong row is detected."""
    device, dtype = target
    rows = torch.randn(3 * 11, channels) * torch.logspace(-1, 1, 3 * 11)[:, None]
    mapped = (rows @ torch.randn(channels, 20 * 32) * channels**-0.5).view(11, 3, 20, 32)
    q, k, v = mapped.to(device, dtype).split([16, 2, 2], dim=2)
    cos, sin = projected(target, 1, 11, 1, 1, 32)[3:] if rotated else (None, None)
    rows = rows.to(device, dtype)
    for heads in (1, 4, 8):
        out = kernel(q, k, v, cos, sin, rows=rows, eps=1e-5, heads=heads)
        agree(out, reference.local_attention(q.float(), k.float(), v.float(), cos, sin, rows=rows, eps=1e-5))


@pytest.mark.parametrize("wanted", [range(7, 11), range(1), range(3, 5)], ids=str)
@pytest.mark.parametrize("late", [True, False])
def test_wanted_tokens_equal_those_of_the_whole_result(kernel, target, agree, wanted, late):
    """Other rows are read as keys and values but not as queries: their queries are NaN here."""
    q, k, v, cos, sin = projected(target, 3, 11, 16, 2, 32)
    norm = {"rows": (10 * torch.randn(11 * 3, 40)).to(*target), "eps": 1e-5} if late else {}
    truth = reference.local_attention(q.float(), k.float(), v.float(), cos, sin, **norm)[wanted.start : wanted.stop]
    q = q.clone()
    q[: wanted.start] = q[wanted.stop :] = float("nan")
    for heads in (1, 8):
        out = kernel(q, k, v, cos, sin, **norm, wanted=wanted, heads=heads)
        assert out.shape == truth.shape
        agree(out, truth)


def test_rows_that_are_not_contiguous_are_refused(kernel, target):
    with pytest.raises(ValueError, match="rows must be"):
        kernel(*projected(target, 1, 4, 2, 1, 8), rows=torch.ones(6, 4, device=target[0]).T)


def test_longer_sequences_are_refused(kernel, target):
    with pytest.raises(ValueError, match="17 tokens"):
        kernel(*projected(target, 1, 17, 2, 1, 8))


def test_uneven_slices_are_refused(kernel, target):
    q, k, v, cos, sin = projected(target, 2, 4, 2, 1, 8)
    with pytest.raises(ValueError, match="evenly"):
        kernel(q.transpose(0, 1), k, v, cos, sin)
