"""The kernels that train the bundled voice and their gradients agree with the library's operations."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tools.voice import codec_kernels, quick_codec, tiny_attention
from tools.voice.model import within


def same(mine: Callable[..., Tensor], theirs: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
    leaves = [x.requires_grad_() for x in inputs]
    made, expected = mine(*leaves), theirs(*leaves)
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
    weight = torch.randn_like(made)
    gradients = zip(
        torch.autograd.grad((made * weight).sum(), leaves),
        torch.autograd.grad((expected * weight).sum(), leaves),
        strict=True,
    )
    for gradient, right in gradients:
        torch.testing.assert_close(gradient, right, rtol=1e-3, atol=2e-4)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(4)


@pytest.mark.parametrize("time", [25, 1500])
def test_snake(time: int, target: tuple[str, torch.dtype]) -> None:
    x, alpha = torch.randn(2, 3, time, device=target[0]), 1 + torch.rand(1, 3, 1, device=target[0])
    same(codec_kernels.Snake.apply, quick_codec.plain_snake, (x, alpha))


@pytest.mark.parametrize(("time", "dilation"), [(25, 9), (1500, 1), (1500, 9)])
def test_depthwise(time: int, dilation: int, target: tuple[str, torch.dtype]) -> None:
    x, weight = torch.randn(2, 3, time, device=target[0]), torch.randn(3, 1, codec_kernels.TAPS, device=target[0])
    bias = torch.randn(3, device=target[0])
    same(
        lambda *inputs: codec_kernels.Depthwise.apply(*inputs, dilation),
        lambda *inputs: quick_codec.plain_depthwise(*inputs, dilation),  # pyright: ignore[reportCallIssue]
        (x, weight, bias),
    )


@pytest.mark.parametrize(("rows", "heads", "groups"), [(11, 8, 4), (5, 4, 4), (16, 4, 1)])
def test_tiny_attention(rows: int, heads: int, groups: int, target: tuple[str, torch.dtype]) -> None:
    q = torch.randn(3, rows, heads, 32, device=target[0])
    k, v = (torch.randn(3, rows, groups, 32, device=target[0]) for _ in range(2))
    same(tiny_attention.Attention.apply, within, (q, k, v))
