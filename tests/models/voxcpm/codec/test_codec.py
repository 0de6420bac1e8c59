"""The codec in chunks gives the official results, and its chunks join without a gap."""

import numpy as np
import pytest
import torch
from support.engines.voice_parts import encoded

from voxcpm_grpc.request import Role


def noise(*shape: int) -> np.ndarray:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).numpy()


def test_chunks_of_the_codec_are_bounded_and_join(tiny):
    waveform = noise(16000 * 7 + 123) * 0.3
    chunks = [chunk for _, chunk in tiny.codec.encode(waveform, Role.PROMPT)]
    patch = tiny.info.input_samples_per_step
    assert len(chunks) > 3
    assert max(len(chunk) for chunk in chunks) * patch <= 2 * 16000
    padded = np.pad(waveform, (-len(waveform) % patch, 0))
    start = torch.zeros(1, tiny.codec.encoder.memory)
    whole = tiny.codec.encode_chunk(torch.from_numpy(padded), start)[0].numpy()
    assert np.abs(np.concatenate(chunks) - whole).max() < 3e-5

    audio = list(tiny.codec.decode({"latents": np.concatenate(chunks)}))
    assert max(map(len, audio)) <= 2 * 48000
    assert sum(map(len, audio)) == len(np.concatenate(chunks)) * tiny.info.samples_per_step


@pytest.mark.parametrize("role", Role)
def test_padding_fills_the_first_patch_of_a_prompt_or_the_last_of_a_reference(tiny, role):
    waveform, patch = noise(3000) * 0.3, tiny.info.input_samples_per_step
    zeros = np.zeros(2 * patch - 3000, np.float32)
    full = np.concatenate([zeros, waveform] if role is Role.PROMPT else [waveform, zeros])
    ours, theirs = (encoded(tiny.codec, x, role) for x in (waveform, full))
    assert ours.shape == (2, 4, tiny.info.latents.dim)
    assert ours.dtype == np.float32
    assert np.array_equal(ours, theirs)


def test_empty_input_gives_no_chunks(tiny):
    assert list(tiny.codec.encode(np.zeros(0, np.float32), Role.PROMPT)) == []
    assert list(tiny.codec.decode({"latents": np.zeros((0, 4, 8), np.float32)})) == []


def test_chunks_are_contiguous(tiny):
    waveform = noise(16000 * 5)
    assert all(chunk.is_contiguous() for _, chunk in tiny.codec.encode(waveform, Role.PROMPT))
    assert all(chunk.is_contiguous() for chunk in tiny.codec.decode({"latents": noise(40, 4, tiny.info.latents.dim)}))
