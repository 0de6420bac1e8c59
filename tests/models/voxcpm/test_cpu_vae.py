"""The codec's modules for a CPU agree with the plain ones, chunk by chunk."""

import pytest
import torch

from voxcpm_grpc.layers.packed import packing_serves
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.voxcpm.config import VAEConfig
from voxcpm_grpc.models.voxcpm.cpu_vae import DepthwiseConv, ProductUpsample, SingleOutputConv, with_cpu_modules
from voxcpm_grpc.models.voxcpm.vae import StreamingNet, build_decoder, build_encoder

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


@pytest.mark.parametrize("depthwise", [True, False])
@pytest.mark.parametrize("streams", [1, 3])
def test_networks_agree_with_the_plain_ones(depthwise, streams):
    torch.manual_seed(0)
    encoder, decoder = networks(depthwise=depthwise)
    for net, parts in (
        (encoder, torch.randn(streams, 1, 36).split([6, 12, 18], dim=-1)),
        (decoder, torch.randn(streams, 8, 9).split([1, 2, 6], dim=-1)),
    ):
        fast, memory, plain_memory = with_cpu_modules(net), *(torch.zeros(streams, net.memory) for _ in range(2))
        assert fast.memory == net.memory
        for part in parts:
            kept = part.clone()
            made, memory = fast(part, memory)
            plain, plain_memory = net(part, plain_memory)
            torch.testing.assert_close(made, plain, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(memory, plain_memory, atol=1e-4, rtol=1e-4)
            assert torch.equal(part, kept)


def test_each_module_is_replaced_where_it_serves():
    _, decoder = networks(depthwise=True)
    kinds = {type(module) for module in with_cpu_modules(decoder).modules}
    assert {DepthwiseConv, SingleOutputConv} <= kinds
    _, dense = networks(depthwise=False)
    assert DepthwiseConv not in {type(module) for module in with_cpu_modules(dense).modules}
    assert (ProductUpsample in kinds) == packing_serves()
