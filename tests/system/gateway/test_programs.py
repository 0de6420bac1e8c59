"""Requests as programs send them: Open WebUI, SillyTavern, LibreChat, and the plugins of LiveKit and Pipecat."""

import asyncio

import httpx2
import numpy as np
import pytest
from support.clients.ears import SENTENCE, resampled, samples

TIMEOUT = 240.0


@pytest.fixture
def http(site):
    with httpx2.Client(base_url=site.url, timeout=TIMEOUT, trust_env=False) as http:
        yield http


def test_open_webui_discovers_without_a_header_and_speaks_without_a_format(http, understood):
    models = http.get("/v1/audio/models").json()["models"]
    voices = http.get("/v1/audio/voices").json()["voices"]
    assert all(isinstance(model["id"], str) for model in models)
    assert {voice["id"]: voice["name"] for voice in voices}["miles"] == "miles"
    headers = {"authorization": "Bearer sk-anything", "x-openwebui-user-id": "7"}
    body = {"model": "tts-1", "input": SENTENCE, "voice": "miles"}
    response = http.post("/v1/audio/speech", json=body, headers=headers)
    assert response.headers["content-type"] == "audio/mpeg"
    understood(samples(response.content))


def test_sillytavern_always_sends_a_speed(http, understood):
    body = {"model": "tts-1", "input": SENTENCE, "voice": "alloy", "response_format": "mp3", "speed": 1}
    understood(samples(http.post("/v1/audio/speech", json=body).content))


def test_librechat_sends_a_backend(http, understood):
    body = {"input": SENTENCE, "model": "tts-1", "voice": "alloy", "backend": "piper"}
    understood(samples(http.post("/v1/audio/speech", json=body).content))


@pytest.mark.parametrize("model", ["gpt-4o-mini-tts", "tts-1"])
@pytest.mark.parametrize("wanted", ["mp3", "pcm", "wav", "opus", "flac"])
async def test_livekit_s_plugin_speaks(site, understood, model, wanted):
    """The first model asks for events, the second for audio."""
    from livekit.plugins import openai

    tts = openai.TTS(model=model, voice="alloy", base_url=site.api, api_key="none", response_format=wanted)
    try:
        frames = [event.frame async for event in tts.synthesize(SENTENCE)]
    finally:
        await tts.aclose()
    assert {frame.sample_rate for frame in frames} == {24000}
    understood(resampled(b"".join(bytes(frame.data) for frame in frames), 24000))


async def test_pipecat_s_service_speaks(site, understood):
    from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame, TTSSpeakFrame
    from pipecat.services.openai.tts import OpenAITTSService
    from pipecat.tests.utils import run_test

    service = OpenAITTSService(
        api_key="none",
        base_url=site.api,
        sample_rate=24000,
        settings=OpenAITTSService.Settings(model="tts-1", voice="nova"),
    )
    down, up = await run_test(service, frames_to_send=[TTSSpeakFrame(text=SENTENCE)])
    assert not [frame for frame in (*down, *up) if isinstance(frame, ErrorFrame)]
    audio = b"".join(frame.audio for frame in down if isinstance(frame, TTSAudioRawFrame))
    assert np.frombuffer(audio, "<i2").size > 24000
    understood(resampled(audio, 24000))


async def test_twenty_callers_at_once_are_all_served(site):
    async with httpx2.AsyncClient(base_url=site.url, timeout=TIMEOUT, trust_env=False) as http:
        body = {"input": "Good morning.", "voice": "miles", "response_format": "pcm", "seed": 1}
        replies = await asyncio.gather(*(http.post("/v1/audio/speech", json=body) for _ in range(20)))
    assert {reply.status_code for reply in replies} == {200}
    lengths = {len(reply.content) for reply in replies}
    assert len(lengths) == 1
