from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxcpm_grpc.audio import SAMPLE_RATES, StreamResampler, resample

NOISE = np.random.default_rng(7).uniform(-0.5, 0.5, 200_000).astype(np.float32)


def streamed(samples: np.ndarray, source: int, target: int, cuts: list[int]) -> np.ndarray:
    resampler = StreamResampler(source, target)
    parts = [resampler.push(part) for part in np.split(samples, sorted(cuts))]
    return np.concatenate([*parts, resampler.flush()])


@pytest.mark.parametrize("source", [8000, 11025, 44100, 48000])
@pytest.mark.parametrize("target", [16000, 24000])
@pytest.mark.parametrize("length", [1, 2, 147, 16001])
def test_the_length_is_rounded_up(source, target, length):
    assert len(resample(NOISE[:length], source, target)) == math.ceil(length * (float(target) / source))


def test_a_tone_does_not_change(make_sine):
    resampled = resample(make_sine(1.0, 44100), 44100, 16000)
    np.testing.assert_allclose(resampled[1000:-1000], make_sine(1.0, 16000)[1000:-1000], atol=1e-3)


def test_equal_rates_return_the_samples_unchanged():
    assert resample(NOISE, 16000, 16000) is NOISE
    resampler = StreamResampler(48000, 48000)
    assert resampler.push(NOISE) is NOISE
    assert len(resampler.flush()) == 0


@pytest.mark.parametrize("target", SAMPLE_RATES)
def test_chunks_equal_the_whole_signal(target):
    samples = NOISE[: 48000 + 7]
    whole = resample(samples, 48000, target)
    parts = streamed(samples, 48000, target, list(range(7680, len(samples), 7680)))
    assert abs(len(parts) - len(samples) * target / 48000) <= 0.5
    np.testing.assert_allclose(parts, whole[: len(parts)], atol=1e-6)


@settings(max_examples=40)
@given(
    length=st.integers(0, 20_000),
    cuts=st.lists(st.integers(0, 20_000), max_size=12),
    target=st.sampled_from([8000, 16000, 22050, 24000, 44100]),
)
def test_any_chunk_sizes_give_the_same_signal(length, cuts, target):
    samples = NOISE[:length]
    ragged = streamed(samples, 48000, target, [min(cut, length) for cut in cuts])
    assert abs(len(ragged) - length * target / 48000) <= 0.5
    np.testing.assert_allclose(ragged, streamed(samples, 48000, target, []), atol=1e-6)


@pytest.mark.parametrize(
    ("target", "limit"), [(8000, 0.160), (12000, 0.080), (16000, 0.040), (24000, 0.040), (44100, 0.020)]
)
def test_the_held_samples_are_bounded(target, limit):
    resampler = StreamResampler(48000, target)
    received = 0
    for chunk in range(400):
        received += len(resampler.push(NOISE[480 * chunk : 480 * (chunk + 1)]))
        assert 0 <= 0.01 * (chunk + 1) - received / target <= limit


def test_a_new_signal_starts_after_flush_and_after_reset():
    resampler = StreamResampler(48000, 16000)
    first = np.concatenate([resampler.push(NOISE[:9000]), resampler.flush()])
    again = np.concatenate([resampler.push(NOISE[:9000]), resampler.flush()])
    np.testing.assert_array_equal(first, again)
    assert len(resampler.flush()) == 0
    resampler.push(NOISE[9000:20000])
    resampler.reset()
    np.testing.assert_array_equal(np.concatenate([resampler.push(NOISE[:9000]), resampler.flush()]), first)
