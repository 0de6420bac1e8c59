"""The networks of the codec: chunks join exactly, and streams do not mix."""

import pytest
import torch

from voxcpm_grpc.models.voxcpm.codec.vae import decoder_context
from voxcpm_grpc.models.voxcpm.config.config import VAE2Config, VAEConfig

HOP = 640


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def whole(net, x):
    return net(x, torch.zeros(len(x), net.memory))[0]


@pytest.mark.parametrize("cuts", [(1,), (1, 2, 4, 9), (5, 6, 30), tuple(range(1, 40))])
def test_chunks_of_any_length_equal_the_whole_result(tiny, cuts):
    for net, x, hop in (
        (tiny.codec.encoder, noise(1, 1, 40 * HOP) * 0.3, HOP),
        (tiny.codec.decoder, noise(1, tiny.info.latents.dim, 40), 1),
    ):
        memory, pieces = torch.zeros(1, net.memory), []
        for begin, end in zip((0, *cuts), (*cuts, 40), strict=True):
            piece, memory = net(x[..., begin * hop : end * hop], memory)
            pieces.append(piece)
        exact = whole(net, x)
        assert (torch.cat(pieces, -1) - exact).abs().max() < 1e-5 * exact.abs().max()


def test_streams_in_a_batch_do_not_mix(tiny):
    net, x = tiny.codec.decoder, noise(3, tiny.info.latents.dim, 8)
    together = whole(net, x)
    for i in range(3):
        assert (whole(net, x[i : i + 1])[0] - together[i]).abs().max() < 1e-6


def test_context_follows_from_the_rates():
    assert decoder_context(VAE2Config()) == 20
    assert decoder_context(VAEConfig(decoder_rates=(7, 7, 6, 3, 2))) == 21  # of VoxCPM1.5
    assert decoder_context(VAEConfig()) == 19  # of VoxCPM-0.5B


def test_audio_depends_on_its_context_only(tiny):
    net, x = tiny.codec.decoder, noise(1, tiny.info.latents.dim, 40)
    primed, short = ((whole(net, x[..., 30 - n :])[..., n * 1920 :]) for n in (20, 16))
    exact = whole(net, x)[..., 30 * 1920 :]
    assert (primed - exact).abs().max() < 1e-6
    assert (short - exact).abs().max() > 1e-6
