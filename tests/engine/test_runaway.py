"""Speech that runs on is reported, and silence after speech ends a segment if the request asks for it."""

from __future__ import annotations

import numpy as np
import pytest
from support.engines.tiny import engine, finished, mixed_requests, run

from voxcpm_grpc.engine.scheduling.sequence import SILENCE_RMS, Sequence
from voxcpm_grpc.events import FinishReason
from voxcpm_grpc.models.base import Plan
from voxcpm_grpc.request import Request, Sampling


def sequence(**sampling: int) -> Sequence:
    request = Request(id="a", text="a", sampling=Sampling(**sampling))
    plan = Plan(positions=0, cacheable=0, max_steps=100, own=None, numbers=np.zeros(0, np.int64))
    return Sequence(request=request, plan=plan, limit=0, queued_at=0.0)


def test_silence_counts_only_after_speech_and_speech_begins_anew():
    one = sequence(max_silent_steps=2)
    loud, quiet = np.full(960, 0.1, np.float32), np.full(960, SILENCE_RMS / 2, np.float32)
    given = (quiet, quiet, quiet, loud, quiet, loud, quiet, quiet)
    assert [one.fell_silent(samples) for samples in given] == [False] * 7 + [True]
    endless = sequence()
    assert not any(endless.fell_silent(quiet) for _ in range(100))


@pytest.mark.parametrize("ratio", [0.05, 1.0, 6.0])
def test_the_ratio_limits_the_steps_and_decides_what_ran_on(ratio):
    """The tiny model never ends by itself within these limits, as a model that runs on."""
    eng = engine()
    eng.add(Request(id="a", text="hello hello hello", sampling=Sampling(steps_per_token=ratio, min_steps=100, seed=1)))
    plan = next(iter(eng._sequences.values())).plan
    tokens = plan.ran_on_steps / ratio
    assert tokens == pytest.approx(round(tokens))
    assert plan.max_steps == int(plan.ran_on_steps + 10)
    end = finished(run(eng)["a"])
    assert (end.reason, end.steps, end.ran_on) == (FinishReason.MAX_STEPS, plan.max_steps, True)


def test_speech_of_a_usual_length_did_not_run_on():
    eng = engine()
    eng.add(Request(id="a", text="hello hello hello", sampling=Sampling(max_steps=3, min_steps=0, seed=1)))
    assert not finished(run(eng)["a"]).ran_on


def test_an_engine_ends_a_segment_at_the_silence_that_its_request_allows(monkeypatch):
    """With a threshold above all audio but that of one step, the others are silence."""
    request = mixed_requests()[0]
    plain = engine(slots=1)
    plain.add(request)
    outcome = run(plain)[request.id]
    audio = outcome.waveform.reshape(finished(outcome).steps, -1)
    energy = np.sqrt((audio**2).mean(axis=1))
    order = np.sort(energy)
    monkeypatch.setattr("voxcpm_grpc.engine.scheduling.sequence.SILENCE_RMS", float(order[-1] + order[-2]) / 2)
    loudest = int(energy.argmax())
    for allowed in range(1, len(audio) - loudest):
        sampling = Sampling(
            seed=request.sampling.seed,
            max_steps=request.sampling.max_steps,
            min_steps=request.sampling.min_steps,
            cfg_value=request.sampling.cfg_value,
            temperature=request.sampling.temperature,
            inference_timesteps=request.sampling.inference_timesteps,
            max_silent_steps=allowed,
        )
        eng = engine(slots=1)
        eng.add(Request(**{name: getattr(request, name) for name in ("id", "text", "conditioning")}, sampling=sampling))
        end = run(eng)[request.id]
        assert finished(end).steps == loudest + 1 + allowed
        last = finished(end).steps == len(audio)
        assert finished(end).reason is FinishReason.SILENCE or last
        np.testing.assert_allclose(end.waveform, outcome.waveform[: end.waveform.size], atol=1e-4)
        break
    else:
        pytest.skip("the loudest step of this checkpoint is the last one")
