"""The codec: official results, and pieces that join exactly."""

import numpy as np
import pytest
import torch

from voxcpm_grpc.models.voxcpm2.config import VAEConfig
from voxcpm_grpc.models.voxcpm2.vae import decoder_context

HOP = 640


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def whole(net, x):
    return net(x, torch.zeros(len(x), net.memory))[0]


def test_encode_equals_the_official_result(tiny, modules):
    latents = np.concatenate(list(tiny.codec.encode(modules["vae_encode.input"].numpy(), pad_left=False)))
    golden = modules["vae_encode.output"].T.numpy()  # padded to a frame, where ours is padded to a patch
    assert np.abs(latents.reshape(-1, latents.shape[-1])[: len(golden)] - golden).max() < 1e-5


def test_decode_equals_the_official_result(tiny, modules):
    latents = modules["vae_decode.input"].T.unflatten(0, (-1, 4)).numpy()
    audio = np.concatenate(list(tiny.codec.decode(latents)))
    assert np.abs(audio - modules["vae_decode.output"].numpy()).max() < 1e-5


@pytest.mark.parametrize("cuts", [(1,), (1, 2, 4, 9), (5, 6, 30), tuple(range(1, 40))])
def test_streams_equal_the_whole_whatever_the_pieces(tiny, cuts):
    for net, x, hop in (
        (tiny.codec.encoder, noise(1, 1, 40 * HOP) * 0.3, HOP),
        (tiny.codec.decoder, noise(1, tiny.info.latent_dim, 40), 1),
    ):
        memory, pieces = torch.zeros(1, net.memory), []
        for begin, end in zip((0, *cuts), (*cuts, 40), strict=True):
            piece, memory = net(x[..., begin * hop : end * hop], memory)
            pieces.append(piece)
        exact = whole(net, x)
        assert (torch.cat(pieces, -1) - exact).abs().max() < 1e-5 * exact.abs().max()


def test_streams_in_a_batch_do_not_mix(tiny):
    net, x = tiny.codec.decoder, noise(3, tiny.info.latent_dim, 8)
    together = whole(net, x)
    for i in range(3):
        assert (whole(net, x[i : i + 1])[0] - together[i]).abs().max() < 1e-6


def test_pieces_of_the_codec_are_bounded_and_join(tiny):
    waveform = noise(16000 * 7 + 123).numpy() * 0.3
    pieces = list(tiny.codec.encode(waveform, pad_left=True))
    patch = tiny.info.samples_per_patch
    assert len(pieces) > 3
    assert max(len(piece) for piece in pieces) * patch <= 2 * 16000
    padded = np.pad(waveform, (-len(waveform) % patch, 0))
    latents = whole(tiny.codec.encoder, torch.from_numpy(padded)[None, None])[0].T.numpy()
    assert np.abs(np.concatenate(pieces).reshape(latents.shape) - latents).max() < 1e-5

    audio = list(tiny.codec.decode(np.concatenate(pieces)))
    assert max(map(len, audio)) <= 2 * 48000
    assert sum(map(len, audio)) == len(np.concatenate(pieces)) * tiny.info.samples_per_step


@pytest.mark.parametrize("pad_left", [True, False])
def test_padding_fills_the_first_or_the_last_patch(tiny, pad_left):
    waveform, patch = noise(3000).numpy() * 0.3, tiny.info.samples_per_patch
    zeros = np.zeros(2 * patch - 3000, np.float32)
    full = np.concatenate([zeros, waveform] if pad_left else [waveform, zeros])
    ours, theirs = (np.concatenate(list(tiny.codec.encode(x, pad_left=pad_left))) for x in (waveform, full))
    assert ours.shape == (2, 4, tiny.info.latent_dim)
    assert ours.dtype == np.float32
    assert np.array_equal(ours, theirs)


def test_nothing_gives_nothing(tiny):
    assert list(tiny.codec.encode(np.zeros(0, np.float32), pad_left=True)) == []
    assert list(tiny.codec.decode(np.zeros((0, 4, 8), np.float32))) == []


def test_context_follows_from_the_rates():
    assert decoder_context(VAEConfig()) == 20
    assert decoder_context(VAEConfig(decoder_rates=(7, 7, 6, 3, 2))) == 21
    assert decoder_context(VAEConfig(decoder_rates=(8, 8, 5, 2))) == 19


def test_context_is_all_that_audio_depends_on(tiny):
    net, x = tiny.codec.decoder, noise(1, tiny.info.latent_dim, 40)
    primed, short = ((whole(net, x[..., 30 - n :])[..., n * 1920 :]) for n in (20, 16))
    exact = whole(net, x)[..., 30 * 1920 :]
    assert (primed - exact).abs().max() < 1e-6
    assert (short - exact).abs().max() > 1e-6
