"""The audio of a real server, through gRPC and a process boundary, equals that of the official package."""

import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
from support.doubles.pools import patient
from support.engines import goldens
from support.engines.checkpoints import TINY
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, Prompt
from voxcpm_client.values.voices import Latents
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_server.app import running_server


def float_wav(waveform: np.ndarray, rate: int = 16000) -> bytes:
    """A WAV file of float32 samples, which the encoder receives without loss."""
    data = waveform.astype("<f4").tobytes()
    header = struct.pack("<4sIHHIIHH4sI", b"fmt ", 16, 3, 1, rate, 4 * rate, 4, 32, b"data", len(data))
    return struct.pack("<4sI4s", b"RIFF", 4 + len(header) + len(data), b"WAVE") + header + data


@contextlib.asynccontextmanager
async def serving(folder: Path, golden: goldens.Golden) -> AsyncIterator[AsyncClient]:
    """A client of a server whose engine takes the noise of a golden case, from its start, for each request."""
    np.save(folder / "noise.npy", golden.noise)
    settings = Settings(
        model=str(TINY),
        listen="127.0.0.1:0",
        engine=EngineSettings(recorded_noise=folder / "noise.npy", max_slots=2),
        supervision=patient(),
        voices=VoiceSettings(url=str(folder / "voices")),
    )
    async with running_server(settings) as server, AsyncClient(server.address, timeout=HANG_SECONDS) as client:
        yield client


async def compare(client: AsyncClient, golden: goldens.Golden, source: str) -> None:
    """Speak a golden case. `source` tells how its recordings are sent: as latents or audio."""
    sampling, conditioning = golden.request.sampling, {}
    assert sampling.max_steps is not None and sampling.min_steps is not None
    assert sampling.cfg_value is not None and sampling.inference_timesteps is not None
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
    golden = goldens.load("sentence")
    async with serving(tmp_path, golden) as client:
        await compare(client, golden, "latents")


async def test_prompt_and_reference_inside_the_request(tmp_path):
    golden = goldens.load("hifi")
    async with serving(tmp_path, golden) as client:
        for source in ("latents", "audio"):
            await compare(client, golden, source)
