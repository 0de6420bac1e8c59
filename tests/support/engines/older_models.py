"""Checks of engines with the tiny checkpoints of the models before VoxCPM2."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.engines import goldens
from support.engines.plans import plan_of
from support.engines.tiny import at_rest, engine, finished, latents, mixed_requests, run

from voxcpm_grpc.request import Request

TOLERANCE = 1e-4


def requests_for(checkpoint: Path, count: int) -> list[Request]:
    """Requests of the modes that these models have. Patches of VoxCPM-0.5B have two frames."""
    return mixed_requests(count, frames=2 if checkpoint.name == "tiny-0.5b" else 4, references=False)


def check_official_speech(checkpoint: Path, name: str) -> None:
    """With the noise of a golden, an engine gives its tokens, latents and audio."""
    golden = goldens.load(name, goldens.GOLDENS / checkpoint.name)
    eng = engine(noise=torch.from_numpy(golden.noise), checkpoint=checkpoint)
    rows = plan_of(eng.model, golden.request)
    assert rows.own.tokens[~rows.own.audio].tolist() == golden.tensors["ids"][golden.tensors["text_mask"]].tolist()
    assert rows.max_steps == golden.cap
    eng.add(golden.request)
    outcome = run(eng)[name]
    assert finished(outcome).steps == len(golden.latents)
    assert finished(outcome).reason == ("stop" if golden.ended_by == "stop" else "max_steps")
    np.testing.assert_allclose(latents(outcome), golden.latents, atol=TOLERANCE, rtol=0)
    golden.same_audio(outcome.waveform, atol=TOLERANCE)
    assert at_rest(eng)


def check_batch(checkpoint: Path, count: int, **settings: Any) -> None:
    """Streams in a batch, which lack slots and pages and pause, give the audio of streams alone."""
    alone = {}
    for request in requests_for(checkpoint, count):
        eng = engine(slots=1, checkpoint=checkpoint, prefix_caching=False)
        eng.add(request)
        alone |= run(eng)
    eng = engine(checkpoint=checkpoint, prefill_tokens=7, **settings)
    for request in requests_for(checkpoint, count):
        eng.add(request, limit=3)
    outcomes = run(eng)
    for id in alone:
        eng.allow(id, 103)
    run(eng, outcomes=outcomes)
    for id, expected in alone.items():
        assert finished(outcomes[id]).steps == finished(expected).steps
        np.testing.assert_allclose(latents(outcomes[id]), latents(expected), atol=TOLERANCE)
        np.testing.assert_allclose(outcomes[id].waveform, expected.waveform, atol=TOLERANCE)
    assert eng.stats().preemptions > 0 and eng.stats().swaps > 0 and at_rest(eng)
