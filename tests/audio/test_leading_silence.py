"""The silence at the start of a signal is found and left out, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

from voxcpm_grpc.audio import AudioFormat, Effects, Encoding, OutputPipeline
from voxcpm_grpc.audio.leading_silence import LeadingSilence

RATE = 48000
KEPT, WINDOW = RATE // 100, RATE // 200  # samples
SOUND = np.sin(np.arange(RATE // 2) / 20).astype(np.float32) / 2


def noise(samples: int, dbfs: float) -> np.ndarray:
    """White noise of a level."""
    found = np.random.default_rng(1).standard_normal(samples) * 10 ** (dbfs / 20)
    return found.astype(np.float32)


def pushed(silence: LeadingSilence, samples: np.ndarray, size: int) -> tuple[np.ndarray, list[int]]:
    """The part of a signal that is returned, in chunks of a size, and the positions of the audible window in it."""
    parts: list[np.ndarray] = []
    audible: list[int] = []
    for start in range(0, len(samples), size):
        before, known = sum(map(len, parts)), silence.audible is not None
        parts.append(silence.push(samples[start : start + size]))
        if silence.audible is not None and not known:
            audible.append(before + silence.audible)
    return np.concatenate([*parts, silence.release()]), audible


@pytest.mark.parametrize("size", [7, 100, 240, 7680, RATE])
@pytest.mark.parametrize("level", [-200, -75, -62])
def test_silence_is_left_out_but_for_10_ms_whatever_the_chunks_are(size, level):
    signal = np.concatenate([noise(2400, level), SOUND[:2400]])
    silence = LeadingSilence(RATE, 1.0)
    found, audible = pushed(silence, signal, size)
    assert silence.trimmed == len(signal) - len(found) == 2400 - KEPT
    np.testing.assert_array_equal(found, signal[silence.trimmed :])
    assert audible == [KEPT]


@pytest.mark.parametrize("level", [-58, -50, -30])
def test_a_signal_that_opens_with_noise_is_left_alone(level):
    signal = np.concatenate([noise(7200, level), SOUND])
    silence = LeadingSilence(RATE, 1.0)
    found, audible = pushed(silence, signal, 960)
    np.testing.assert_array_equal(found, signal)
    assert silence.trimmed == 0 and audible == [0 if level > -45 else 7200]


@pytest.mark.parametrize("size", [100, 240, 7680, 2 * RATE])
def test_a_signal_that_is_silent_for_the_limit_stays_as_it_is(size):
    signal = np.concatenate([noise(RATE // 2 + 240, -75), SOUND])
    for limit, trimmed in ((0.5, 0), (0.51, RATE // 2 + 240 - KEPT), (0.0, 0)):
        silence = LeadingSilence(RATE, limit)
        found, audible = pushed(silence, signal, size)
        np.testing.assert_array_equal(found, signal[trimmed:])
        assert silence.trimmed == trimmed
        assert audible == [pytest.approx(RATE // 2 + 240 - trimmed, abs=WINDOW)]


def test_audio_waits_until_the_limit_at_most():
    silence = LeadingSilence(RATE, 0.1)
    returned = [len(silence.push(noise(960, -75))) for _ in range(7)]
    assert returned == [0, 0, 0, 0, 5 * 960, 960, 960]


def test_a_signal_that_ends_in_its_silence_stays():
    silence = LeadingSilence(RATE, 1.0)
    signal = noise(4000, -75)
    np.testing.assert_array_equal(pushed(silence, signal, 960)[0], signal)


def test_a_soft_onset_stays_with_10_ms_before_it():
    ramp = SOUND * np.linspace(0, 1, len(SOUND), dtype=np.float32) ** 3  # it passes -60 dBFS after 60 ms
    signal = np.concatenate([np.zeros(7200, np.float32), ramp])
    silence = LeadingSilence(RATE, 1.0)
    found = pushed(silence, signal, 960)[0]
    lost = signal[: silence.trimmed]
    assert len(found) > len(ramp) - RATE // 10
    assert np.abs(lost).max() < 10 ** (-60 / 20) < np.abs(found[: 3 * KEPT]).max()


@pytest.mark.parametrize("encoding", [Encoding.PCM_F32LE, Encoding.PCM_S16LE])
@pytest.mark.parametrize("rate", [48000, 44100, 22050, 8000])
@pytest.mark.parametrize("effects", [Effects(), Effects(speed=1.5), Effects(gain_db=-20), Effects(gain_db=18)])
def test_what_follows_the_silence_is_the_same_at_every_rate_speed_and_volume(effects, rate, encoding):
    signal = np.concatenate([noise(9600, -70), SOUND])
    data: list[bytes] = []
    trimmed = 0
    for limit in (0.0, 1.0):
        pipeline = OutputPipeline(RATE, AudioFormat(encoding, rate))
        pipeline.begin_turn(effects, max_silence=limit)
        parts = [pipeline.push(part) for part in np.split(signal, range(960, len(signal), 960))]
        data.append(b"".join(part.data for part in [*parts, pipeline.flush()]))
        trimmed = pipeline.trimmed
    assert 0.1 < trimmed / rate < 0.2
    assert data[1] == data[0][trimmed * (4 if encoding is Encoding.PCM_F32LE else 2) :]
