"""The inputs with which an engine warms up: they compile and allocate what its first users would wait for."""

from __future__ import annotations

import numpy as np

from voxcpm_grpc.request import Conditioning, ModelInfo, Prompt, Request, Sampling

STEPS = 2
CODEC_SECONDS = 2.0


def codec_inputs(info: ModelInfo) -> tuple[np.ndarray, np.ndarray]:
    """Silence to encode, float32 [samples], and latents to decode, float32 [patches, P, D]."""
    samples = int(CODEC_SECONDS * info.input_sample_rate)
    return np.zeros(samples, np.float32), _latents(info, samples // info.samples_per_patch)


def warm_up_requests(info: ModelInfo, *, streams: int, timesteps: int, patches: int) -> list[Request]:
    """As many requests as `streams`, of STEPS steps each. The first has a voice of `patches` patches."""
    sampling = Sampling(inference_timesteps=timesteps, min_steps=0, max_steps=STEPS)
    latents = _latents(info, patches)
    prompt = Conditioning(prompt=Prompt(text="Zero. ", latents=latents))
    voices = [Conditioning(reference=latents) if info.takes_references else prompt] + [Conditioning()] * (streams - 1)
    return [
        Request(id=f"warm-up {number}", text="One, two.", sampling=sampling, conditioning=voice)
        for number, voice in enumerate(voices)
    ]


def _latents(info: ModelInfo, patches: int) -> np.ndarray:
    return np.zeros((patches, info.patch_size, info.latent_dim), np.float32)
