"""Recordings become the official codes and the official vector of the voice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.engines.qwen3_codec import DEEP, MANIFEST, SHALLOW, checkpoint, codec, golden, speaker_encoder

from tools.qwen3_codec_inputs import SECONDS, recording
from voxcpm_grpc.errors import InvalidRequest

HOP = 1920


def encode(variant: str, waveform: np.ndarray, frames: int) -> np.ndarray:
    encoder = codec(variant).encoder
    assert encoder
    return torch.cat(list(encoder.encode(torch.from_numpy(waveform), frames))).numpy()


def vector(variant: str, waveform: np.ndarray, frames: int) -> torch.Tensor:
    speaker = codec(variant).speaker
    assert speaker
    work = speaker.encode(torch.from_numpy(waveform), frames)
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("variant", [SHALLOW, DEEP])
@pytest.mark.parametrize("seconds", SECONDS)
def test_codes_are_the_official_ones(variant, seconds):
    """All frames see all earlier ones: the official package does not apply the window of 250 of its configuration."""
    found = encode(variant, recording(seconds), 25)
    assert found.dtype == np.int16
    assert np.array_equal(found, golden(variant)[f"codes_{seconds:g}"])


@pytest.mark.parametrize("frames", [1, 7, 1000])
def test_codes_do_not_depend_on_chunks(frames):
    found = encode(DEEP, recording(3.0), frames)
    assert np.array_equal(found, golden(DEEP)["codes_3"])


@pytest.mark.parametrize("samples", [1, 959, 960, 961, HOP, HOP + 1, 3 * HOP - 1])
def test_the_last_frame_is_filled_up(samples):
    """As each convolution with a stride does, and not the recording."""
    waveform = recording(1.0)[:samples]
    found = encode(SHALLOW, waveform, 2)
    assert len(found) == -(-samples // HOP)
    assert np.array_equal(found, encode(SHALLOW, waveform, 8))


@pytest.mark.parametrize("variant", [SHALLOW, DEEP])
@pytest.mark.parametrize("seconds", SECONDS)
def test_the_vector_of_a_voice_is_the_official_one(variant, seconds):
    official = golden(variant)[f"speaker_{seconds:g}"]
    assert np.abs(official).max() > 1
    np.testing.assert_allclose(vector(variant, recording(seconds), 200), official, atol=1e-4, rtol=0)


@pytest.mark.parametrize("frames", [16, 100, 1000])
def test_the_vector_does_not_depend_on_slices(frames):
    official = golden(SHALLOW)["speaker_3"]
    np.testing.assert_allclose(vector(SHALLOW, recording(3.0), frames), official, atol=1e-5, rtol=0)


def test_the_spectrogram_is_the_official_one():
    speaker = codec(SHALLOW).speaker
    assert speaker
    mel = speaker.mel(speaker.mel.windows(torch.from_numpy(recording(3.0))))
    official = golden(SHALLOW)["mel"]
    np.testing.assert_allclose(mel.flatten()[:: MANIFEST["mel_stride"]], official, atol=1e-4, rtol=0)


def test_a_recording_may_be_as_short_as_its_mirrored_ends():
    shortest = recording(1.0)[:1280]
    assert vector(SHALLOW, shortest, 100).isfinite().all()
    with pytest.raises(InvalidRequest, match=r"1279 samples \(53 ms\).*needs 1280 \(53 ms\) or more"):
        vector(SHALLOW, shortest[:-1], 100)


def test_the_speaker_encoder_computes_in_float32_for_a_model_in_16_bits():
    encoder = speaker_encoder(checkpoint(SHALLOW))  # from weights of a model in bfloat16
    assert encoder.mel.windows(torch.zeros(2400)).shape == (9, 1024)
    assert vector(SHALLOW, recording(0.1), 50).dtype == torch.float32
