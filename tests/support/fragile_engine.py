"""An engine with a real model that fails on request of a test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voxcpm_grpc.request import Conditioning
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.worker.dispatcher import EngineLike
from voxcpm_grpc.worker.main import LoadEngine

POISON = 1234.5
POISONED = Conditioning(reference=np.full((5, 4, 8), POISON, np.float32))
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
        embed, decode_patch = model.embed, model.decode_patch

        def embed_unless_poisoned(rows, state, **options):
            if (state.history[rows.audio_slot, rows.audio_patch] == POISON).any():
                raise ValueError("poison")
            return embed(rows, state, **options)

        def decode_unless_full(rows, state):
            if self.full.exists():
                self.full.unlink()
                raise torch.OutOfMemoryError("tried to allocate more than there is")
            return decode_patch(rows, state)

        model.embed, model.decode_patch = embed_unless_poisoned, decode_unless_full
        return engine
