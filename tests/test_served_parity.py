"""The audio of a real server, through gRPC and a process boundary, equals that of the official package."""

import struct

import numpy as np
import pytest
from support import goldens
from support.checkpoints import TINY
from support.pools import patient
from support.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, Prompt
from voxcpm_client.voices import Latents
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_server.app import running_server


def float_wav(waveform: np.ndarray, rate: int = 16000) -> bytes:
    """A WAV file of float32 samples, which the encoder receives without loss."""
    data = waveform.astype("<f4").tobytes()
    header = struct.pack("<4sIHHIIHH4sI", b"fmt ", 16, 3, 1, rate, 4 * rate, 4, 32, b"data", len(data))
    return struct.pack("<4sI4s", b"RIFF", 4 + len(header) + len(data), b"WAVE") + header + data


async def compare(tmp_path, name: str, source: str) -> None:
    """Speak a golden case through a new server. `source` tells how its recordings are sent: as latents or audio."""
    golden = goldens.load(name)
    np.save(tmp_path / "noise.npy", golden.noise)
    settings = Settings(
        model=str(TINY),
        listen="127.0.0.1:0",
        engine=EngineSettings(recorded_noise=tmp_path / "noise.npy", max_slots=2),
        supervision=patient(),
        voices=VoiceSettings(url=str(tmp_path / "voices")),
    )
    sampling, conditioning = golden.request.sampling, {}
    assert sampling.max_steps is not None and sampling.min_steps is not None
    assert sampling.cfg_value is not None and sampling.inference_timesteps is not None
    async with running_server(settings) as server, AsyncClient(server.address, timeout=HANG_SECONDS) as client:
        fingerprint = (await client.model_info()).model_fingerprint
        for role in ("prompt", "reference"):
            if f"{role}_latents" not in golden.tensors:
                continue
            latents = golden.tensors[f"{role}_latents"].reshape(-1, golden.latents.shape[-1])
            as_latents = Latents(data=latents, model_fingerprint=fingerprint)
            conditioning[role] = as_latents if source == "latents" else float_wav(golden.tensors[f"{role}_waveform"])
        if prompt := golden.request.conditioning.prompt:
            conditioning["prompt"] = Prompt(conditioning["prompt"], prompt.text)
        speech = await client.say(
            golden.request.text,
            format="pcm_f32le",
            trim_leading_silence=0,
            segmentation="manual",
            cfg_value=sampling.cfg_value,
            timesteps=sampling.inference_timesteps,
            min_steps=sampling.min_steps,
            max_steps=sampling.max_steps,
            **conditioning,
        )
    assert speech.summary is not None
    assert speech.summary.generated_steps == len(golden.latents)
    assert speech.summary.total_samples == len(speech.samples)
    golden.same_audio(speech.samples, atol=1e-4)


async def test_a_sentence(tmp_path):
    await compare(tmp_path, "sentence", "latents")


@pytest.mark.parametrize("source", ["latents", "audio"])
async def test_prompt_and_reference_inside_the_request(tmp_path, source):
    await compare(tmp_path, "hifi", source)
