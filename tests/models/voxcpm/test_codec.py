"""The codec in chunks gives the official results, and its chunks join without a gap."""

import numpy as np
import pytest
import torch


def noise(*shape: int) -> np.ndarray:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).numpy()


def test_chunks_of_the_codec_are_bounded_and_join(tiny):
    waveform = noise(16000 * 7 + 123) * 0.3
    chunks = list(tiny.codec.encode(waveform, pad_left=True))
    patch = tiny.info.samples_per_patch
    assert len(chunks) > 3
    assert max(len(chunk) for chunk in chunks) * patch <= 2 * 16000
    padded = np.pad(waveform, (-len(waveform) % patch, 0))
    start = torch.zeros(1, tiny.codec.encoder.memory)
    whole = tiny.codec.encode_chunk(torch.from_numpy(padded), start)[0].numpy()
    assert np.abs(np.concatenate(chunks) - whole).max() < 3e-5

    audio = list(tiny.codec.decode(np.concatenate(chunks)))
    assert max(map(len, audio)) <= 2 * 48000
    assert sum(map(len, audio)) == len(np.concatenate(chunks)) * tiny.info.samples_per_step


@pytest.mark.parametrize("pad_left", [True, False])
def test_padding_fills_the_first_or_the_last_patch(tiny, pad_left):
    waveform, patch = noise(3000) * 0.3, tiny.info.samples_per_patch
    zeros = np.zeros(2 * patch - 3000, np.float32)
    full = np.concatenate([zeros, waveform] if pad_left else [waveform, zeros])
    ours, theirs = (np.concatenate(list(tiny.codec.encode(x, pad_left=pad_left))) for x in (waveform, full))
    assert ours.shape == (2, 4, tiny.info.latents.dim)
    assert ours.dtype == np.float32
    assert np.array_equal(ours, theirs)


def test_empty_input_gives_no_chunks(tiny):
    assert list(tiny.codec.encode(np.zeros(0, np.float32), pad_left=True)) == []
    assert list(tiny.codec.decode(np.zeros((0, 4, 8), np.float32))) == []


def test_chunks_are_contiguous(tiny):
    waveform = noise(16000 * 5)
    assert all(chunk.is_contiguous() for chunk in tiny.codec.encode(waveform, pad_left=True))
    assert all(chunk.is_contiguous() for chunk in tiny.codec.decode(noise(40, 4, tiny.info.latents.dim)))
