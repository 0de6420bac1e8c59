"""The codec's modules for a CPU agree with the plain ones, chunk by chunk."""

import math

import pytest
import torch

from voxcpm_grpc.layers.compilable_streaming import PolynomialSnake, TapSum, compilable
from voxcpm_grpc.layers.cpu_streaming import with_cpu_modules
from voxcpm_grpc.layers.packed import packing_serves
from voxcpm_grpc.layers.streaming import DelayLine, StreamingNet
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.voxcpm.codec.vae import build_decoder, build_encoder
from voxcpm_grpc.models.voxcpm.config.config import VAEConfig

SIZES = {"encoder_dim": 8, "encoder_rates": (2, 3), "latent_dim": 8, "decoder_dim": 384, "decoder_rates": (3, 2)}


def networks(*, depthwise: bool) -> tuple[StreamingNet, StreamingNet]:
    """An encoder and a decoder with random weights."""
    config = VAEConfig(**SIZES, depthwise=depthwise)

    class Drawn(Weights):
        def take(self, name: str, *shape: int) -> torch.Tensor:
            return torch.randn(*shape) * 0.3 + 0.5

        def scope(self, name: str) -> "Drawn":
            return self

    weights = Drawn("random", {}, torch.device("cpu"), torch.float32, torch.float32)
    return build_encoder(config, weights), build_decoder(config, weights)


def by_rows(memory: torch.Tensor, net: StreamingNet) -> torch.Tensor:
    """The memory of a network in the layout of its form for a CPU."""
    parts = memory.split([channels * samples for channels, samples in net.tails], dim=1)
    pairs = zip(parts, net.tails, strict=True)
    return torch.cat([part.unflatten(1, size).transpose(1, 2).flatten(1) for part, size in pairs], dim=1)


FORMS = {
    "packed": with_cpu_modules,
    "plain": lambda net: with_cpu_modules(net, packed=False),
    "compilable": lambda net: compilable(with_cpu_modules(net, packed=False)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("depthwise", [True, False])
@pytest.mark.parametrize("streams", [1, 3])
def test_networks_agree_with_the_plain_ones(depthwise, streams, form):
    torch.manual_seed(0)
    encoder, decoder = networks(depthwise=depthwise)
    for net, parts in (
        (encoder, torch.randn(streams, 1, 36).split([6, 12, 18], dim=-1)),
        (decoder, torch.randn(streams, 8, 9).split([1, 2, 6], dim=-1)),
    ):
        fast, memory, plain_memory = FORMS[form](net), *(torch.zeros(streams, net.memory) for _ in range(2))
        assert fast.memory == net.memory
        for part in parts:
            kept = part.clone()
            made, memory = fast(part, memory)
            plain, plain_memory = net(part, plain_memory)
            torch.testing.assert_close(made, plain, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(memory, by_rows(plain_memory, net), atol=1e-4, rtol=1e-4)
            assert torch.equal(part, kept)


@pytest.mark.skipif(not packing_serves(), reason="needs oneDNN's products")
def test_products_and_convolutions_are_packed_where_that_serves():
    _, decoder = networks(depthwise=True)
    assert any(getattr(module, "packed", False) for module in with_cpu_modules(decoder).modules)
    assert not any(getattr(module, "packed", False) for module in with_cpu_modules(decoder, packed=False).modules)


def test_the_compiler_gets_sums_and_a_polynomial():
    _, decoder = networks(depthwise=True)
    kinds = {type(module) for module in compilable(with_cpu_modules(decoder, packed=False)).modules}
    assert {TapSum, PolynomialSnake} <= kinds


def test_the_polynomial_is_the_squared_sine_of_small_and_large_arguments():
    x = torch.linspace(-200, 200, 30_001)[None, :, None]
    made = PolynomialSnake(torch.full((1,), 1 / math.pi), torch.ones(1))(x, DelayLine([]))
    expected = x.double() + torch.sin(x.double()).square()
    near = x.abs() < 4
    assert (made - expected).abs()[near].max() < 1e-6
    assert (made - expected).abs().max() < 5e-5  # float32 itself has steps of 1.5e-5 there
