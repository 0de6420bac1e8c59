"""In 16 bits the audio has no seam where another engine goes on, measured with the bundled voice."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from support.engines.checkpoints import VOICE

from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.events import AudioChunk, History
from voxcpm_grpc.models.base import LoadOptions, SpeechModel
from voxcpm_grpc.models.loading import load_model
from voxcpm_grpc.request import Request, Sampling
from voxcpm_grpc.settings.engine import EngineSettings

TEXT = "The quick brown fox jumps over the lazy dog, and nobody minds it at all."
STEPS = 24
JOINTS = range(3, STEPS - 1, 4)


@dataclass(frozen=True)
class Made:
    """A speech of an engine, chunk by chunk, as the front has it."""

    chunks: list[AudioChunk]

    @property
    def jumps(self) -> np.ndarray:
        """The differences between the last sample of a step and the first one of the next, [steps - 1]."""
        audio = [np.asarray(chunk.samples) for chunk in self.chunks]
        return np.array([abs(after[0] - before[-1]) for before, after in pairwise(audio)])


def speak(model: SpeechModel, device: torch.device, before: list[AudioChunk], *, beside: int = 0) -> Made:
    """Speak with a new engine, behind the chunks of another one, with so many other streams beside it."""
    eng = Engine(model, EngineSettings(), device)
    sampling = Sampling(seed=5, inference_timesteps=4, min_steps=STEPS, max_steps=STEPS)
    steps = b"".join(chunk.steps for chunk in before)
    history = History(steps=steps, chunks=len(before), silent=0) if before else None
    eng.add(Request(id="speech", text=TEXT, sampling=sampling), history=history)
    for number in range(beside):
        eng.add(
            Request(id=f"{number}", text=f"Other words, {number}.", sampling=Sampling(seed=number, max_steps=STEPS))
        )
    chunks = list(before)
    while eng.busy:
        for id, event in eng.step():
            if id == "speech" and isinstance(event, AudioChunk):
                chunks.append(event)
    return Made(chunks)


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.thorough), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_the_jump_at_a_joint_is_one_between_ordinary_steps(device):
    """The engine that goes on has other streams, so that its products are rounded differently."""
    on = torch.device(device)
    model = load_model(VOICE, LoadOptions(device=on, dtype=torch.bfloat16, max_slots=4))
    whole = speak(model, on, [])
    ordinary = whole.jumps
    joints = [speak(model, on, whole.chunks[:steps], beside=2).jumps[steps - 1] for steps in JOINTS]
    print(
        f"jumps at ordinary steps: mean {ordinary.mean():.5f}, max {ordinary.max():.5f}; "
        f"at {len(joints)} joints: mean {np.mean(joints):.5f}, max {max(joints):.5f}"
    )
    assert np.abs(np.concatenate([chunk.samples for chunk in whole.chunks])).max() > 0.05, "it is speech"
    assert max(joints) <= ordinary.max() and np.mean(joints) <= 1.5 * ordinary.mean()
