"""The released dimensions on a GPU, served through gRPC: streams of every mode at once."""

import asyncio

import numpy as np
import pytest
from support.doubles.pools import patient
from support.engines.full_size import full_size  # noqa: F401
from support.engines.recorded_stats import RecordStats, recorded_stats

from voxcpm_client import AsyncClient, Prompt
from voxcpm_client.values.voices import Latents
from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.local import EngineProcess, LocalEngines
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_grpc.worker.main import LoadEngine
from voxcpm_server.app import running_server

pytestmark = pytest.mark.gpu
STREAMS, STEPS = 16, 12


@pytest.mark.timeout(400)
async def test_sixteen_streams_of_mixed_modes(full_size, tmp_path):  # noqa: F811
    settings = Settings(
        model=str(full_size),
        listen="127.0.0.1:0",
        engine=EngineSettings(max_slots=STREAMS),
        supervision=patient(),
        voices=VoiceSettings(url=str(tmp_path / "voices")),
    )
    seconds = np.arange(2 * 16000) / 16000
    tone = (0.3 * np.sin(2 * np.pi * 220 * seconds)).astype(np.float32)
    engine = EngineProcess(RecordStats(LoadEngine(full_size, "full", settings.engine), tmp_path))
    pool = EnginePool(LocalEngines({"engine": lambda: engine}, settings.supervision))
    async with running_server(settings, pool=pool) as server, AsyncClient(server.address, timeout=120) as client:
        info = await client.model_info()
        assert (info.device, info.dtype, info.codec_dtype, info.feat_dim) == ("cuda:0", "bfloat16", "float16", 64)
        frames = np.random.default_rng(0).standard_normal((48, info.feat_dim)).astype(np.float32)
        latents = Latents(data=frames, model_fingerprint=info.model_fingerprint)
        recording = wav_bytes(tone, 16000)
        reference = await client.add_reference(recording)
        hifi = await client.add_hifi(recording, "A tone. ")
        modes = [
            {},
            {"style": "a calm old man"},
            {"prompt": Prompt(latents, "As I said, ")},
            {"reference": recording},
            {"voice": reference.id},
            {"voice": hifi.id},
            {"prompt": Prompt(recording, "A tone. "), "reference": latents},
            {"sample_rate": 24000, "timesteps": 4, "cfg_value": 1.0},
        ]

        async def speak(index: int):
            options = {
                "seed": index,
                "max_steps": STEPS,
                "format": "pcm_f32le",
                "trim_leading_silence": 0,
                **modes[index % len(modes)],
            }
            return await client.say(f"Number {index} speaks a sentence of its own.", **options)

        speeches = await asyncio.gather(*(speak(index) for index in range(STREAMS)))
        stats = recorded_stats(tmp_path, engine.pid)
    for index, speech in enumerate(speeches):
        rate = 24000 if index % len(modes) == 7 else 48000
        assert speech.sample_rate == rate and len(speech.samples) == STEPS * 0.16 * rate
        assert np.isfinite(speech.samples).all()
        assert 1e-3 < np.sqrt(np.mean(speech.samples**2)) < 0.9
    assert (stats.slots_used, stats.pages_used, stats.failed) == (0, 0, 0)
    assert stats.prefix_hit_tokens > 0
