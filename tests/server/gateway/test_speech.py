"""OpenAI's speech endpoint of the gateway."""

import base64
import io
import json
from dataclasses import replace

import av
import numpy as np
import pytest
from support.servers.uploads import recording

from voxcpm_grpc.abilities import Option
from voxcpm_grpc.v1 import tts_pb2 as pb

TEXT = "Hello there. How are you?"
DATA_URL = "data:audio/wav;base64,"


def decoded(audio: bytes) -> tuple[np.ndarray, int]:
    with av.open(io.BytesIO(audio), "r") as container:
        frames = [frame.to_ndarray() for frame in container.decode(audio=0)]
        return np.concatenate([frame.reshape(-1) for frame in frames]), container.streams.audio[0].rate


def config(encoding: str = "PCM_S16LE", rate: int = 0, seed: int = 7) -> pb.GenerateConfig:
    return pb.GenerateConfig(
        output=pb.AudioFormat(encoding=f"AUDIO_ENCODING_{encoding}", sample_rate_hz=rate),  # type: ignore[arg-type]
        turn=pb.TurnConfig(sampling=pb.Sampling(seed=seed)),
    )


@pytest.mark.parametrize(
    ("wanted", "media_type"),
    [
        (None, "audio/mpeg"),
        ("mp3", "audio/mpeg"),
        ("opus", "audio/ogg"),
        ("flac", "audio/flac"),
        ("wav", "audio/wav"),
    ],
)
async def test_the_audio_decodes_and_is_as_long_as_that_of_the_server(gateway, served, wanted, media_type):
    direct = await served.generate(TEXT)
    seconds = sum(chunk.sample_count for chunk in direct) / direct[0].header.format.sample_rate_hz
    response = await gateway.speak(TEXT, **({"response_format": wanted} if wanted else {}))
    assert response.status_code == 200
    assert response.headers["content-type"] == media_type
    samples, rate = decoded(response.content)
    assert len(samples) / rate == pytest.approx(seconds, abs=0.15)  # MP3 and Opus have whole frames


async def test_pcm_is_16_bit_at_24_khz_and_that_of_the_server(gateway, served):
    response = await gateway.speak(TEXT, response_format="pcm", seed=7)
    direct = await served.generate(config(rate=24000), TEXT)
    assert response.headers["content-type"] == "audio/pcm"
    assert response.content == b"".join(chunk.audio for chunk in direct)
    other = await gateway.speak(TEXT, response_format="pcm", seed=7, sample_rate=16000)
    assert len(other.content) == pytest.approx(len(response.content) * 2 / 3, rel=0.01)


async def test_the_silence_at_the_start_is_left_out_unless_the_caller_wants_it(gateway, served):
    served.pool.opening = np.zeros(7200, np.float32)  # 0.15 s
    spoken = {"response_format": "pcm", "seed": 7, "sample_rate": 48000}
    whole = await gateway.speak(TEXT, trim_leading_silence=0, **spoken)
    heard = await gateway.speak(TEXT, **spoken)
    assert heard.content == whole.content[2 * (7200 - 480) :]  # 10 ms stay
    refused = await gateway.speak(TEXT, trim_leading_silence=11, **spoken)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "trim_leading_silence"


async def test_events_carry_the_same_audio_and_the_usage(gateway):
    plain = await gateway.speak(TEXT, response_format="pcm", seed=7)
    response = await gateway.speak(TEXT, response_format="pcm", seed=7, stream_format="sse")
    assert response.headers["content-type"] == "text/event-stream"
    *deltas, done = events(response.text)
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == plain.content
    assert done["type"] == "speech.audio.done"
    assert done["usage"]["input_tokens"] == len(TEXT)
    assert done["usage"]["total_tokens"] == len(TEXT) + done["usage"]["output_tokens"]


def events(body: str) -> list[dict]:
    return [json.loads(line.removeprefix("data: ")) for line in body.split("\n\n") if line]


async def test_audio_arrives_while_the_engine_still_works(gateway, served):
    served.pool.hold_after = 3
    async with gateway.http.stream("POST", "/v1/audio/speech", json={"input": TEXT, "response_format": "pcm"}) as reply:
        parts = reply.aiter_raw()
        assert reply.status_code == 200
        assert await anext(parts)
        served.pool.release()
        assert sum([len(part) async for part in parts]) > 0


async def test_instructions_and_parameters_reach_the_model(gateway, served):
    fields = {"cfg_value": 1.5, "inference_timesteps": 6, "temperature": 0.5, "max_steps": 2}
    response = await gateway.speak("Hello.", instructions="a calm old man", seed=3, extra_params=fields)
    assert response.status_code == 200
    [asked] = served.pool.requests
    assert asked.sampling.cfg_value == 1.5
    assert (asked.sampling.inference_timesteps, asked.sampling.max_steps, asked.sampling.seed) == (6, 2, 3)
    assert asked.sampling.temperature == 0.5
    assert asked.style == "a calm old man"


CODES = {"top_k": 7, "top_p": 0.5, "repetition_penalty": 1.25}
CODES |= {"code_temperature": 0.5, "code_top_k": 3, "code_top_p": 0.75}


async def test_the_options_and_the_language_of_a_model_of_codes_reach_it(serve_front, serve_gateway, fake):
    pool = fake()
    options = tuple(Option(name=name, default=1, low=0, high=9, rule="it must be from 0 to 9") for name in CODES)
    told = replace(pool.info.abilities, language="")
    pool.info = replace(pool.info, options=options, abilities=told, speech_languages=("de",))
    async with serve_front(pool) as front, serve_gateway(front.address) as gateway:
        given = {"speech_language": "German", "language": "en", "extra_params": CODES}
        assert (await gateway.speak("Hello.", **given)).status_code == 200
        error = (await gateway.speak("Hello.", speech_language="sv")).json()["error"]
    [asked] = pool.requests
    assert {name: getattr(asked.sampling, name) for name in CODES} == CODES and asked.language == "de"
    assert (error["param"], error["message"]) == (
        "speech_language",
        "speech_language is 'sv'; it must be one of de",
    )


async def test_what_a_model_does_not_have_is_refused_by_the_name_of_its_field(gateway):
    for name, value in CODES.items():
        response = await gateway.speak("Hello.", extra_params={name: value})
        assert (response.status_code, response.json()["error"]["param"]) == (400, f"extra_params.{name}")
    response = await gateway.speak("Hello.", speech_language="de")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "speech_language")
    assert "takes no language" in response.json()["error"]["message"]


async def test_input_begins_with_a_style_only_if_the_request_says_so(gateway, served):
    for fields in ({}, {"style_in_text": True}, {"style_in_text": False}):
        assert (await gateway.speak("(a calm old man)Hello.", **fields)).status_code == 200
    read = "a calm old man Hello."
    assert [(asked.style, asked.text) for asked in served.pool.requests] == [
        ("", read),
        ("a calm old man", "Hello."),
        ("", read),
    ]


async def test_a_recording_in_a_data_url_is_a_reference_and_with_its_words_a_prompt(gateway, served):
    url = DATA_URL + base64.b64encode(recording()).decode()
    assert (await gateway.speak("Hello.", ref_audio=url, voice="default")).status_code == 200
    assert (await gateway.speak("Hello.", ref_audio=url, ref_text="One two.")).status_code == 200
    first, second = served.pool.requests
    assert first.conditioning.reference is not None
    assert first.conditioning.prompt is None
    assert second.conditioning.prompt.text == "One two. "


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": ""}, "input", "is empty"),
        ({"input": "x" * 4097}, "input", "4097 characters and the limit is 4096"),
        ({"input": "..."}, "input", "nothing to speak"),
        ({"input": 7}, "input", "must be a string"),
        ({"inputs": "x"}, "inputs", "did you mean input?"),
        ({"stream": True}, "stream", "is unknown"),
        ({"response_format": "aac"}, "response_format", "'aac'; it must be one of mp3, opus, flac, wav, pcm"),
        ({"response_format": "ogg"}, "response_format", "must be one of"),
        ({"speed": 4.0}, "speed", "speed is 4; it must be 0.5 to 2"),
        ({"speed": 0.25}, "speed", "speed is 0.25; it must be 0.5 to 2"),
        ({"speed": "fast"}, "speed", "must be a number"),
        ({"speed": True}, "speed", "must be a number"),
        ({"seed": -1}, "seed", "must be 0 to 9223372036854775807"),
        ({"voice": {"name": "x"}}, "voice", "with the key id"),
        ({"voice": "a", "speaker": "b"}, "speaker", "different voices"),
        ({"word_timestamps": True}, "word_timestamps", "set stream_format to sse"),
        ({"extra_params": {"cfg": 1}}, "extra_params.cfg", "there are cfg_value, inference_timesteps"),
        ({"extra_params": {"cfg_value": 99}}, "extra_params.cfg_value", "cfg_value"),
        ({"sample_rate": 12345}, "sample_rate", "sample_rate is 12345"),
        ({"ref_text": "x"}, "ref_text", "needs ref_audio"),
        ({"ref_audio": "https://example.com/a.wav"}, "ref_audio", "does not fetch recordings"),
        ({"ref_audio": "file:///etc/passwd"}, "ref_audio", "must be a data URL"),
        ({"ref_audio": "data:audio/wav;base64,%%%"}, "ref_audio", "not base64"),
        ({"ref_audio": "data:audio/wav,abc"}, "ref_audio", "base64"),
        ({"ref_audio": DATA_URL + "AAAA", "voice": "miles"}, "voice", "leave out ref_audio"),
    ],
)
async def test_a_wrong_field_is_named_in_openai_s_shape(gateway, fields, param, words):
    response = await gateway.speak(**fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


async def test_null_and_the_usual_speed_count_as_not_given(gateway):
    fields = {"instructions": None, "voice": None, "speed": 1, "stream_format": None, "backend": "x"}
    assert (await gateway.speak(**fields)).status_code == 200


async def test_the_volume_and_the_cut_of_the_first_sentence_go_with_the_request(gateway, served):
    usual, quiet = [
        np.frombuffer((await gateway.speak(TEXT, response_format="pcm", seed=7, **fields)).content, "<i2").astype(float)
        for fields in ({}, {"volume_gain_db": -6})
    ]
    assert np.abs(quiet).max() == pytest.approx(np.abs(usual).max() * 10 ** (-6 / 20), rel=0.01)
    long = "When the rain had stopped at last, they went out and looked at the garden behind the house together."
    await gateway.speak(long, first_segment="eager")
    assert served.pool.requests[-1].text != long
    refused = (await gateway.speak(TEXT, volume_gain_db=21)).json()["error"]
    assert (refused["param"], refused["message"]) == (
        "volume_gain_db",
        "volume_gain_db is 21; it must be -30 to 20",
    )


@pytest.mark.parametrize("speed", [0.5, 1.5, 2])
async def test_another_speed_changes_the_length(gateway, speed):
    usual = await gateway.speak(TEXT, response_format="pcm", seed=7)
    other = await gateway.speak(TEXT, response_format="pcm", seed=7, speed=speed)
    assert len(other.content) == pytest.approx(len(usual.content) / speed, rel=0.1)


async def test_a_model_with_another_name_does_not_exist(gateway):
    response = await gateway.speak(model="gpt-9")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    for name in ("tts-1-hd", "gpt-4o-mini-tts-2025-12-15"):
        assert (await gateway.speak(model=name)).status_code == 200


@pytest.mark.parametrize(
    ("body", "kind", "status", "words"),
    [
        (b"{", "application/json", 400, "not JSON at position 1"),
        (b"[]", "application/json", 400, "must be an object"),
        (
            b'{"input": "x", "speed": NaN}',
            "application/json",
            400,
            "speed is NaN, which is not JSON; it must be 0.5 to 2",
        ),
        (b"\xff\xfe", "application/json", 400, "not JSON at position 0"),
        (b"[" * 100_000, "application/json", 400, "nested too deeply"),
        (b"input=x", "application/x-www-form-urlencoded", 415, "must be application/json"),
    ],
)
async def test_a_body_that_is_no_json_is_refused(gateway, body, kind, status, words):
    response = await gateway.http.post("/v1/audio/speech", content=body, headers={"content-type": kind})
    assert response.status_code == status
    assert words in response.json()["error"]["message"]
