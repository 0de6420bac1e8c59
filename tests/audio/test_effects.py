"""Speed and volume of a stream."""

from __future__ import annotations

import numpy as np
import pytest

from voxcpm_grpc.audio import AudioFormat, Effects, Encoding, OutputPipeline
from voxcpm_grpc.audio.effects import LIMIT_DB, LOOKAHEAD_SECONDS, StreamEffects
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest

SPEEDS = (0.5, 0.75, 0.9, 1.1, 1.5, 2.0)
RATES = (8000, 16000, 44100, 48000)
speeds = pytest.mark.parametrize("speed", SPEEDS)
rates = pytest.mark.parametrize("rate", RATES)


def buzz(seconds: float, hertz: float, rate: int) -> np.ndarray:
    """Ten harmonics, like a voiced sound."""
    time = np.arange(int(seconds * rate)) / rate
    harmonics = np.sum([np.sin(2 * np.pi * hertz * n * time) / n for n in range(1, 11)], axis=0)
    return (0.2 * harmonics).astype(np.float32)


def applied(effects: Effects, rate: int, samples: np.ndarray, cuts: list[int] | None = None) -> np.ndarray:
    """A whole signal with effects, pushed in parts; by default in steps of 160 ms."""
    made = StreamEffects(rate, effects)
    parts = np.split(samples, cuts or range(rate * 4 // 25, len(samples), rate * 4 // 25))
    return np.concatenate([*map(made.push, parts), made.flush()])


def frequency(samples: np.ndarray, rate: int) -> float:
    """The frequency of the loudest tone in Hz."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), 8 * len(samples)))
    return float(spectrum.argmax() * rate / (8 * len(samples)))


@rates
@speeds
def test_the_length_is_exact_and_the_pitch_stays(speed, rate):
    for hertz in (90, 210):
        samples = buzz(1.517, hertz, rate)
        found = applied(Effects(speed=speed), rate, samples)
        assert len(found) == int(len(samples) / speed + 0.5) == Effects(speed=speed).length(len(samples))
        assert frequency(found, rate) == pytest.approx(hertz, rel=0.02)
        assert np.sqrt(np.mean(found**2)) == pytest.approx(np.sqrt(np.mean(samples**2)), rel=0.05)


@speeds
def test_there_are_no_clicks(speed):
    """The second difference of a signal shows every jump. The sound swells, because its begin would be one."""
    rate = 48000
    samples = buzz(1.2, 130, rate) * np.minimum(1, np.arange(int(1.2 * rate)) / (0.1 * rate)).astype(np.float32)
    found = applied(Effects(speed=speed), rate, samples)
    before, after = (np.abs(np.diff(one[rate // 100 : -rate // 5], 2)).max() for one in (samples, found))
    assert after < 1.1 * before


@speeds
def test_the_result_does_not_depend_on_the_parts(speed):
    chance = np.random.default_rng(3)
    samples = chance.uniform(-0.5, 0.5, 30_000).astype(np.float32)
    effects = Effects(speed=speed, gain_db=6)
    whole = applied(effects, 16000, samples, [len(samples)])
    for _ in range(3):
        cuts = sorted(chance.integers(0, len(samples), 12).tolist())
        np.testing.assert_allclose(applied(effects, 16000, samples, cuts), whole, atol=1e-6)


@rates
@speeds
def test_no_more_than_the_lookahead_is_held_back(speed, rate):
    effects = Effects(speed=speed, gain_db=3)
    made, given, returned = StreamEffects(rate, effects), 0, 0
    samples = buzz(0.05, 120, rate)
    for _ in range(30):
        returned += len(made.push(samples))
        given += len(samples)
        assert returned >= (given - LOOKAHEAD_SECONDS * rate) / speed
        assert returned <= effects.length(given)


@rates
@speeds
def test_positions_of_the_input_keep_their_content(speed, rate):
    """Silence and tone change at the same place of both signals, within a part of 64 ms."""
    tone, silence = buzz(0.5, 200, rate), np.zeros(rate // 2, np.float32)
    found = applied(Effects(speed=speed), rate, np.concatenate([tone, silence, tone]))
    loud = np.convolve(np.abs(found), np.ones(rate // 100) / (rate // 100), "same") > 0.05
    edges = np.flatnonzero(np.diff(loud.astype(int))) * speed / rate
    inner = edges[(edges > 0.25) & (edges < 1.25)]
    assert inner[0] == pytest.approx(0.5, abs=0.07) and inner[-1] == pytest.approx(1.0, abs=0.07)


def test_a_signal_that_ends_is_complete_and_a_new_one_begins_anew():
    made = StreamEffects(16000, Effects(speed=1.5))
    samples = buzz(0.4, 150, 16000)
    first, second = (np.concatenate([made.push(samples), made.flush()]) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not len(made.flush())
    end = first[-len(first) // 8 :]
    assert np.abs(end).max() > 0.2, "the end of the tone is there"


def test_a_signal_that_is_dropped_leaves_nothing_behind():
    made = StreamEffects(16000, Effects(speed=0.75, gain_db=5))
    made.push(buzz(0.5, 150, 16000))
    made.reset()
    silence = np.zeros(8000, np.float32)
    assert not np.concatenate([made.push(silence), made.flush()]).any()


def test_a_signal_shorter_than_the_lookahead_has_its_length():
    for speed in SPEEDS:
        for count in (1, 2, 100, 1001):
            made = StreamEffects(16000, Effects(speed=speed))
            assert len(made.push(np.full(count, 0.5, np.float32))) + len(made.flush()) == int(count / speed + 0.5)


def test_without_effects_samples_pass_untouched():
    samples = buzz(0.1, 150, 16000)
    pipeline = OutputPipeline(16000, AudioFormat(Encoding.PCM_F32LE, 16000))
    pipeline.begin_turn(Effects(speed=1.5, gain_db=5))
    pipeline.push(samples)
    pipeline.end_turn()
    pipeline.begin_turn(Effects())
    assert pipeline.push(samples).data == samples.tobytes() and not pipeline.flush().data


def test_a_lower_volume_is_exact_and_held_back_by_nothing():
    samples = buzz(0.1, 150, 16000)
    made = StreamEffects(16000, Effects(gain_db=-20))
    np.testing.assert_allclose(made.push(samples), samples / 10, rtol=1e-6)
    assert not len(made.flush())


def test_a_higher_volume_is_exact_below_the_limit_and_limited_above_it():
    quiet = buzz(0.5, 150, 16000) * 0.2
    np.testing.assert_allclose(applied(Effects(gain_db=6), 16000, quiet), quiet * 10 ** (6 / 20), atol=1e-6)
    loud = applied(Effects(gain_db=20), 16000, buzz(0.5, 150, 16000))
    limit = 10 ** (LIMIT_DB / 20)
    assert 0.95 * limit < np.abs(loud).max() <= limit * 1.0001
    assert (np.abs(loud) > 0.999 * limit).mean() < 0.1, "peaks are lowered with what is around them, not cut off"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"speed": 0.49}, "speed is 0.49; it must be 0.5 to 2"),
        ({"speed": float("nan")}, "speed is nan; it must be 0.5 to 2"),
        ({"gain_db": 21}, "volume_gain_db is 21; it must be -30 to 20"),
        ({"gain_db": float("-inf")}, "volume_gain_db is -inf; it must be -30 to 20"),
    ],
)
def test_values_out_of_range_are_refused(values, words):
    with pytest.raises(InvalidRequest) as caught:
        Effects(**values)
    assert caught.value.message == words


def test_a_rate_at_which_speech_would_sound_bad_is_refused():
    Effects(speed=1.5).check(8000)
    Effects(gain_db=5).check(6000)
    with pytest.raises(FailedPrecondition, match="6000 Hz; other speeds than 1 need a rate of 8000 to 192000 Hz"):
        Effects(speed=1.5).check(6000)
