"""The published client of OpenAI, unchanged, before a server with the bundled voice."""

import base64
import io
import json

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from support.clients.ears import RATE, SENTENCE, resampled, samples


@pytest.fixture
def client(site):
    with OpenAI(base_url=site.api, api_key="none", max_retries=0) as client:
        yield client


def speak(client, **fields):
    wanted = {"model": "gpt-4o-mini-tts", "voice": "alloy", "input": SENTENCE, "extra_body": {"seed": 1}}
    return client.audio.speech.create(**(wanted | fields))


@pytest.mark.parametrize("wanted", ["mp3", "opus", "flac", "wav"])
def test_every_format_is_understood(client, understood, wanted):
    audio = speak(client, response_format=wanted).read()
    understood(samples(audio))


def test_the_lengths_of_the_formats_agree_and_a_file_can_be_written(client, tmp_path):
    pcm = speak(client, response_format="pcm").read()
    seconds = len(pcm) / 2 / 24000
    assert 1.2 < seconds < 4
    speak(client).write_to_file(tmp_path / "speech.mp3")
    assert len(samples((tmp_path / "speech.mp3").read_bytes())) / RATE == pytest.approx(seconds, abs=0.15)


def test_the_body_streams(client, understood):
    parts = []
    options = {
        "model": "tts-1",
        "voice": "nova",
        "input": SENTENCE,
        "response_format": "pcm",
        "extra_body": {"seed": 1},
    }
    with client.audio.speech.with_streaming_response.create(**options) as response:
        assert response.headers["content-type"] == "audio/pcm"
        parts = list(response.iter_bytes(4800))
    assert len(parts) > 10
    understood(resampled(b"".join(parts), 24000))


def test_events_stream(client, understood):
    options = {"model": "gpt-4o-mini-tts", "voice": "alloy", "input": SENTENCE, "response_format": "pcm"}
    audio, kinds = b"", []
    more = {"stream_format": "sse", "extra_body": {"seed": 1}}
    with client.audio.speech.with_streaming_response.create(**options, **more) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
                kinds.append(event["type"])
                audio += base64.b64decode(event.get("audio", ""))
    assert kinds[-1] == "speech.audio.done"
    assert set(kinds[:-1]) == {"speech.audio.delta"}
    understood(resampled(audio, 24000))


async def test_the_asynchronous_client_speaks_and_streams(site, understood):
    async with AsyncOpenAI(base_url=site.api, api_key="none") as client:
        response = await client.audio.speech.create(
            model="tts-1", voice="alloy", input=SENTENCE, response_format="wav", extra_body={"seed": 1}
        )
        understood(samples(response.read()))
        async with client.audio.speech.with_streaming_response.create(
            model="tts-1", voice="alloy", input=SENTENCE, response_format="pcm"
        ) as stream:
            assert sum([len(part) async for part in stream.iter_bytes()]) > 24000


def test_models_are_listed_and_found(client):
    names = [model.id for model in client.models.list()]
    assert "tts-1" in names
    assert client.models.retrieve(names[0]).id == names[0]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("whisper-1")


def test_a_voice_is_created_used_and_deleted(client):
    recording = speak(client, voice="miles", response_format="wav").read()
    voice = client.audio.voices.create(
        name="Ada", audio_sample=("ada.wav", io.BytesIO(recording), "audio/wav"), consent="signed"
    )
    assert voice.name == "Ada"
    assert len(speak(client, voice={"id": voice.id}, response_format="pcm").read()) > 24000
    assert client.audio.voices.delete(voice.id).deleted
    with pytest.raises(openai.NotFoundError):
        speak(client, voice={"id": voice.id})


def test_errors_are_those_of_the_client(client):
    with pytest.raises(openai.BadRequestError) as raised:
        speak(client, input="x" * 5000)
    assert raised.value.param == "input"
    assert raised.value.code == "string_above_max_length"
    with pytest.raises(openai.BadRequestError) as raised:
        speak(client, extra_body={"emotion": "sad"})
    assert raised.value.param == "emotion"
    with pytest.raises(openai.NotFoundError):
        speak(client, voice="nobody")
