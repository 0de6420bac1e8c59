"""Recordings without noise and silence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.audio.uploads import NO_CLEANING, Cleaning, DecodePool, decode
from voxcpm_grpc.audio.uploads.cleaning import clean, denoised, trimmed
from voxcpm_grpc.errors import FailedPrecondition

RATE = 16000
VOICES = Path(__file__).parents[3] / "voxcpm_grpc/demo/presets"


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """The recording of a preset of the bundled voice."""
    data = (VOICES / "miles.flac").read_bytes()
    return decode(data, target_rate=RATE, max_seconds=60.0, max_bytes=1 << 24).waveform


def noisy(speech: np.ndarray, decibels: float) -> np.ndarray:
    noise = np.random.default_rng(0).standard_normal(len(speech)).astype(np.float32)
    return speech + noise * np.sqrt((speech @ speech) / (noise @ noise) / 10 ** (decibels / 10), dtype=np.float32)


def distance(found: np.ndarray, speech: np.ndarray) -> float:
    """The scale-invariant ratio of signal to distortion in dB, of signals that are not shifted."""
    scale = (found @ speech) / (speech @ speech)
    error = found - scale * speech
    return float(10 * np.log10(scale**2 * (speech @ speech) / (error @ error)))


@pytest.mark.parametrize(("decibels", "gain"), [(5, 6.0), (15, 4.0), (25, 2.0)])
def test_hiss_becomes_weaker_and_the_speech_stays(speech, decibels, gain):
    """Measured: 9, 7 and 4 dB."""
    recording = noisy(speech, decibels)
    found = denoised(recording, RATE)
    assert found.shape == recording.shape and found.dtype == np.float32
    assert distance(found, speech) > distance(recording, speech) + gain


def test_a_good_recording_hardly_changes(speech):
    assert distance(denoised(speech, RATE), speech) > 30


@pytest.mark.parametrize("length", [0, 1, 399, 400, 5000])
def test_short_recordings_keep_their_length(length):
    assert len(denoised(np.full(length, 0.1, np.float32), RATE)) == length


def tone(seconds: float, level: float = 0.5) -> np.ndarray:
    return (level * np.sin(np.arange(int(seconds * RATE)) * 0.3)).astype(np.float32)


def quiet(seconds: float) -> np.ndarray:
    return tone(seconds, 0.0005)


def test_silence_at_both_ends_is_cut_down_to_a_fifth_of_a_second():
    recording = np.concatenate([quiet(1.5), tone(0.5), quiet(1.0), tone(0.5), quiet(2.0)])
    found = trimmed(recording, RATE)
    assert len(found) / RATE == pytest.approx(0.2 + 2.0 + 0.2, abs=0.15)
    at = next(start for start in range(0, len(recording), 16) if np.array_equal(recording[start:][: len(found)], found))
    assert at / RATE == pytest.approx(1.3, abs=0.1)


@pytest.mark.parametrize("recording", [tone(0.0), tone(0.01), quiet(1.0), tone(1.0), np.zeros(8000, np.float32)])
def test_a_recording_without_silence_at_its_ends_stays_as_it_is(recording):
    assert np.array_equal(trimmed(recording, RATE), recording)


async def test_a_worker_cleans_before_it_checks():
    pool = DecodePool(1)
    limits = {"target_rate": RATE, "max_seconds": 30.0, "max_bytes": 1 << 24}
    recording = np.concatenate([quiet(1.0), tone(0.5), quiet(1.0)])
    try:
        for cleaning in (NO_CLEANING, Cleaning(trim_silence=True), Cleaning(denoise=True, trim_silence=True)):
            found = await pool.decode(wav_bytes(recording, RATE), cleaning=cleaning, **limits)
            plain = decode(wav_bytes(recording, RATE), **limits).waveform
            expected = clean(plain, RATE, cleaning)
            np.testing.assert_array_equal(found.waveform, expected)
            assert found.seconds == pytest.approx(len(expected) / RATE)
    finally:
        await pool.close()


def test_without_pyav_noise_cannot_be_removed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    Cleaning(trim_silence=True).check()
    with pytest.raises(FailedPrecondition, match="PyAV is missing"):
        Cleaning(denoise=True).check()
