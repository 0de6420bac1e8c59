"""An engine with a real model that fails on request of a test."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from support.engines.voice_parts import voice_part

from voxcpm_grpc.request import Conditioning
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.worker.engine_like import EngineLike
from voxcpm_grpc.worker.main import LoadEngine

PAUSE_SECONDS = 0.06  # of each step, so that engines under load are in the middle of speech and not of arithmetic
POISON = 1234.5
POISONED = Conditioning(reference=voice_part(np.full((5, 4, 8), POISON, np.float32)))
"""A voice whose prefill raises an error."""


@dataclass(frozen=True)
class Fragile:
    """Makes the engine. One step runs out of memory after the file `full` is created."""

    checkpoint: Path
    full: Path

    def __call__(self) -> EngineLike:
        import torch

        engine = LoadEngine(self.checkpoint, "tiny", EngineSettings(device="cpu"))()
        model = engine.model  # pyright: ignore[reportAttributeAccessIssue]
        encode, decode = model.encode, model.decode

        def encode_unless_poisoned(slot, patch, state, **options):
            if (state.model.history[slot, patch] == POISON).any():
                raise ValueError("poison")
            return encode(slot, patch, state, **options)

        def decode_unless_full(rows, state):
            if self.full.exists():
                self.full.unlink()
                raise torch.OutOfMemoryError("tried to allocate more than there is")
            time.sleep(PAUSE_SECONDS)
            return decode(rows, state)

        model.encode, model.decode = encode_unless_poisoned, decode_unless_full
        return engine
