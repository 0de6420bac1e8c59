"""A request that is repeated, while the prefix cache holds other beginnings of its prompt each time."""

import numpy as np
import pytest
from support.doubles.pools import patient
from support.engines.checkpoints import TINY
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, Latents
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_server.app import running_server

REPEATED = "Hello there, how are you today?"
OTHERS = ("Hello there.", "Hello there, how is the weather?", f"{REPEATED} I am well, and so is everyone else here.")


@pytest.fixture
def speak_repeatedly(tmp_path):
    """The audio of one request, spoken after others that begin as it does, and the prefixes that were cached."""

    async def run(*, prefix_caching: bool) -> tuple[list[np.ndarray], set[int]]:
        settings = Settings(
            model=str(TINY),
            listen="127.0.0.1:0",
            engine=EngineSettings(max_slots=2, threads=1, prefix_caching=prefix_caching),
            supervision=patient(),
            voices=VoiceSettings(url=str(tmp_path / "voices")),
        )
        found, cached = [], set()
        async with running_server(settings) as server, AsyncClient(server.address, timeout=HANG_SECONDS) as client:
            info = await client.model_info()
            frames = np.random.default_rng(1).standard_normal((136, info.feat_dim)).astype(np.float32)
            reference = Latents(data=frames, model_fingerprint=info.model_fingerprint)
            texts = [text for other in (*OTHERS, *OTHERS[::-1]) for text in (REPEATED, other)]
            for text in texts:
                speech = await client.say(
                    text,
                    reference=reference,
                    seed=5,
                    min_steps=8,
                    max_steps=8,
                    segmentation="manual",
                    format="pcm_f32le",
                    trim_leading_silence=0,
                )
                assert speech.summary is not None
                if text == REPEATED:
                    found.append(speech.samples)
                    cached.add(speech.summary.cached_prefix_tokens)
        return found, cached

    return run


async def test_without_the_prefix_cache_a_repeated_request_has_the_same_bytes(speak_repeatedly):
    found, cached = await speak_repeatedly(prefix_caching=False)
    assert cached == {0}
    assert {samples.tobytes() for samples in found} == {found[0].tobytes()}


async def test_what_the_prefix_cache_holds_changes_a_repeated_request_by_rounding_alone(speak_repeatedly):
    found, cached = await speak_repeatedly(prefix_caching=True)
    assert len(cached) > 1
    for samples in found:
        assert np.abs(samples - found[0]).max() <= 1e-4
