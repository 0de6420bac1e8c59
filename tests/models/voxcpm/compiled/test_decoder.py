"""Compiled decoders serve steps of one patch, for as many streams as they were compiled for."""

import pytest
import torch

from voxcpm_grpc.models.voxcpm.codec.vae import StreamingDecoder
from voxcpm_grpc.models.voxcpm.compiled.decoder import CompiledDecoder, compilable_decoder


@pytest.fixture
def net(load) -> StreamingDecoder:
    """The decoder of a model with plain operations."""
    decoder = load(fused=False).codec.decoder
    assert isinstance(decoder, StreamingDecoder)
    return decoder


def test_steps_equal_those_of_the_network(net, tiny):
    calls, patch = [], (tiny.config.patch_size, tiny.config.feat_dim)

    def step(patches, memory):
        calls.append(len(patches))
        return list(compilable_decoder(net)(patches, memory))

    decoder = CompiledDecoder(net, one=None, several=step)
    memory = torch.randn(4, net.memory) / 8
    states = memory, memory.clone()
    for streams, patches in ((1, 1), (3, 1), (2, 2), (2, 1)):
        content, slot = torch.randn(streams, patches, *patch), torch.randperm(3)[:streams]
        made, expected = (one.decode(content, state, slot) for one, state in zip((decoder, net), states, strict=True))
        torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(*states, atol=1e-4, rtol=1e-4)
    assert calls == [3, 2]
    assert (decoder.memory, decoder.dtype) == (net.memory, net.dtype)
