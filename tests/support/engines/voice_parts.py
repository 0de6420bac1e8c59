"""Parts of voices as VoxCPM has them: latents, float32 [steps, frames, channels]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from voxcpm_grpc.request import Role, VoicePart

if TYPE_CHECKING:
    from voxcpm_grpc.models.base import Codec


def voice_part(latents: np.ndarray, text: str = "") -> VoicePart:
    return VoicePart(content={"latents": latents}, tracks=("latents",), text=text)


def latents_of(part: VoicePart | None) -> np.ndarray:
    assert part is not None and part.content.keys() == {"latents"}
    return part.content["latents"]


def encoded(codec: Codec, waveform: np.ndarray, role: Role) -> np.ndarray:
    """The latents of a waveform."""
    return np.concatenate([chunk.cpu().numpy() for _, chunk in codec.encode(waveform, role)])
