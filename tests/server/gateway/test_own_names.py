"""Errors name the fields of the caller's own API, and nothing of the gRPC behind it."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any

import pytest
from support.clients.gateway_sockets import answers
from support.servers.uploads import recording

from voxcpm_client import Exhausted, FailedPrecondition, InvalidArgument, NotFound, SpeechError
from voxcpm_gateway.errors import from_server
from voxcpm_gateway.requests.fields import names_of
from voxcpm_gateway.routes import older, openai
from voxcpm_gateway.speech import speech_request
from voxcpm_gateway.speech.websocket_messages import CONFIG
from voxcpm_server.auth.keys import create

pytestmark = pytest.mark.thorough

WAV = base64.b64encode(recording(1)).decode()
BROKEN = base64.b64encode(b"no recording at all").decode()
WORDS = {f"w{number}": "x" for number in range(1001)}
INTERNALS = re.compile(
    r"config\.|turn\.|sampling|conditioning|_hz|inline_|display_name|metadata|RST_STREAM|StatusCode|Stream removed"
    r"|ListVoices|GetVoice|127\.0\.0\.1|failed to connect|ipv4:|unix:|/tmp|--target|\btls\b",
    re.IGNORECASE,
)


def check(error: dict[str, Any], param: str | None, words: str) -> None:
    assert error["param"] == param, error
    assert words in error["message"]
    assert not INTERNALS.search(error["message"]), error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"sample_rate": 7}, "sample_rate", "sample_rate is 7; for mp3 it must be one of"),
        ({"sample_rate": 44100, "response_format": "opus"}, "sample_rate", "sample_rate is 44100; for ogg_opus"),
        ({"instructions": "x" * 501}, "instructions", "instructions: the style has 501 characters"),
        ({"language": "x"}, "language", "language is 'x'; it must be a BCP 47 tag"),
        ({"language": "jp"}, "language", "JP is a country, and the tag of its language is ja"),
        ({"lexicon": WORDS}, "lexicon", "1001 words"),
        ({"lexicon": {"a": "!"}}, "lexicon", "no letter"),
        ({"lora": "nobody"}, "lora", "no LoRA adapter"),
        ({"voice": "nobody"}, "voice", "there is no voice 'nobody'"),
        ({"speaker": "nobody"}, "speaker", "there is no voice 'nobody'"),
        ({"ref_audio": f"data:;base64,{BROKEN}"}, "ref_audio", "could not be decoded"),
        ({"ref_audio": f"data:;base64,{BROKEN}", "ref_text": "One."}, "ref_audio", "could not be decoded"),
        ({"ref_audio": f"data:;base64,{WAV}", "ref_text": "x" * 3000}, "ref_text", "3001 characters"),
        ({"ref_audio": "data:;base64,"}, "ref_audio", "0 bytes"),
        ({"extra_params": {"inference_timesteps": 5}}, "extra_params.inference_timesteps", "4, 6, 10"),
        ({"extra_params": {"max_steps": 0}}, "extra_params.max_steps", "extra_params.max_steps is 0"),
        ({"extra_params": {"temperature": 3}}, "extra_params.temperature", "from 0 to 2"),
        ({"input": "?!"}, "input", "nothing to speak"),
    ],
)
async def test_errors_of_speech(gateway, fields, param, words):
    response = await gateway.speak(**fields)
    assert response.status_code in (400, 404), response.text
    check(response.json()["error"], param, words)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"target_text": "?!"}, "target_text", "nothing to speak"),
        ({"prompt_id": "nobody"}, "prompt_id", "there is no voice 'nobody'"),
        ({"ref_audio_id": "nobody"}, "ref_audio_id", "there is no voice 'nobody'"),
        ({"hifi_id": "nobody"}, "hifi_id", "there is no voice 'nobody'"),
        ({"prompt_wav_base64": BROKEN, "prompt_text": "One."}, "prompt_wav_base64", "could not be decoded"),
        ({"prompt_wav_base64": WAV, "prompt_text": "x" * 3000}, "prompt_text", "3000 characters"),
        ({"ref_audio_wav_base64": BROKEN}, "ref_audio_wav_base64", "could not be decoded"),
        (
            {"ref_audio_wav_base64": BROKEN, "prompt_wav_base64": WAV, "prompt_text": "One."},
            "ref_audio_wav_base64",
            "could not be decoded",
        ),
        (
            {"ref_audio_latents_base64": base64.b64encode(b"\xff" * 4096).decode()},
            "ref_audio_latents_base64",
            "the latents",
        ),
        ({"cfg_value": 11}, "cfg_value", "from 0 to 10"),
        ({"lora": "nobody"}, "lora", "no LoRA adapter"),
    ],
)
async def test_errors_of_the_older_routes(gateway, fields, param, words):
    response = await gateway.http.post("/generate", json={"target_text": "Hello.", **fields})
    assert response.status_code in (400, 404), response.text
    check(response.json()["error"], param, words)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"sample_rate": 7}, "sample_rate", "sample_rate is 7"),
        ({"format": "mp3", "bitrate": 1}, "bitrate", "bitrate is 1"),
        ({"format": "ogg"}, "format", "format is 'ogg'; it must be one of pcm_s16le"),
        ({"timesteps": 5}, "timesteps", "timesteps is 5 and this server runs"),
        ({"max_segment_chars": 0}, "max_segment_chars", "max_segment_chars is 0"),
        ({"style": "x" * 501}, "style", "the style has"),
        ({"max_silence": 0}, "max_silence", "max_silence is 0 s"),
        ({"max_lead": -1}, "max_lead", "max_lead is -1 s"),
        ({"speed": 3}, "speed", "speed is 3; it must be 0.5 to 2"),
        ({"voice": "nobody"}, "voice", "there is no voice 'nobody'"),
        ({"lora": "nobody"}, "lora", "no LoRA adapter"),
        ({"reference": {"audio": BROKEN}}, "reference.audio", "could not be decoded"),
        ({"prompt": {"audio": BROKEN, "transcript": "One."}}, "prompt.audio", "could not be decoded"),
        ({"prompt": {"audio": WAV, "transcript": "?"}}, "prompt.transcript", "the transcript is empty"),
        (
            {"prompt": {"audio": WAV, "transcript": "One."}, "reference": {"audio": BROKEN}},
            "reference.audio",
            "could not be decoded",
        ),
        ({"voice": "a", "no_voice": True}, "no_voice", "no_voice cannot be combined"),
        ({"request_id": "x" * 129}, "request_id", "at most 128 printable characters"),
    ],
)
async def test_errors_of_the_websocket(gateway, fields, param, words):
    check(await socket_error(gateway, {"type": "config", **fields}, {"type": "text", "text": "Hello."}), param, words)


async def socket_error(gateway, *messages: dict[str, Any]) -> dict[str, Any]:
    return (await answers("{}:{}".format(*gateway.address), (*messages, {"type": "finish"}))).error


@pytest.mark.parametrize(
    ("message", "param", "words"),
    [
        ({"type": "turn", "timesteps": 5}, "timesteps", "timesteps is 5"),
        ({"type": "turn", "style": "x" * 501}, "style", "the style has"),
        ({"type": "flush", "tag": "x" * 129}, "tag", "the tag has 129 characters"),
        ({"type": "interrupt", "tag": "x" * 129}, "tag", "the tag has 129 characters"),
        ({"type": "interrupt", "played_samples": 10**9}, "played_samples", "played_samples is 1000000000"),
        ({"type": "pause", "milliseconds": 60001}, "milliseconds", "milliseconds is 60001; it must be 1 to 60000"),
    ],
)
async def test_errors_of_later_messages_of_the_websocket(gateway, message, param, words):
    check(await socket_error(gateway, {"type": "config"}, {"type": "text", "text": "Hello."}, message), param, words)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("DELETE", "/v1/audio/voices/nobody", 404),
        ("DELETE", "/prompts/nobody", 404),
        ("DELETE", "/v1/audio/voices/%ED%A0%BD", 404),
        ("DELETE", "/hifi/%00%ff", 404),
        ("GET", "/v1/models/%ED%A0%BD", 404),
        ("GET", "/v1/models?limit=%ED%A0%BD&x=%00", 200),
    ],
)
async def test_errors_of_addresses(gateway, method, path, status):
    response = await gateway.http.request(method, path)
    assert response.status_code == status
    if status == 404:
        check(response.json()["error"], "model" if "models" in path else "id", "")


@pytest.mark.parametrize(
    ("error", "fields", "param", "message"),
    [
        (
            InvalidArgument("sample_rate_hz is 7; it must be 8000 or more", field="config.output.sample_rate_hz"),
            speech_request.FIELDS,
            "sample_rate",
            "sample_rate is 7; it must be 8000 or more",
        ),
        (
            InvalidArgument("encoding is 9; upgrade the server", field="config.output.encoding"),
            speech_request.FIELDS,
            "response_format",
            "response_format is 9; upgrade the server",
        ),
        (
            InvalidArgument("the request needs 9 positions; shorten the text, or lower max_steps", field="text"),
            older.GENERATE_FIELDS,
            "target_text",
            "target_text: the request needs 9 positions; shorten the text, or lower max_generate_length",
        ),
        (
            InvalidArgument("'display_name' is the name of a preset", field="config.options.display_name"),
            openai.VOICE_FIELDS,
            "name",
            "'display_name' is the name of a preset",
        ),
        (
            InvalidArgument("the lexicon has a fault", field="config.lexicon[12]"),
            CONFIG,
            "lexicon",
            "the lexicon has a fault",
        ),
        (
            FailedPrecondition("inflect is missing, which normalises text; send normalize = false"),
            speech_request.FIELDS,
            "normalize",
            "inflect is missing, which normalises text; send normalize = false",
        ),
        (
            FailedPrecondition("references need VoxCPM2, and this server's model is old; send it as a prompt"),
            speech_request.FIELDS,
            None,
            "references need VoxCPM2, and this server's model is old; send it as a prompt",
        ),
        (
            FailedPrecondition("voice ref_1 speaks with the LoRA adapter 'x'; register it, or set lora"),
            speech_request.FIELDS,
            "voice",
            "voice ref_1 speaks with the LoRA adapter 'x'; register it, or set lora",
        ),
        (
            FailedPrecondition("a style needs VoxCPM2; leave the style out"),
            speech_request.FIELDS,
            "instructions",
            "instructions: a style needs VoxCPM2; leave the style out",
        ),
        (
            Exhausted("no slot became free within 30.0 s; retry later or raise max_queue_time"),
            speech_request.FIELDS,
            None,
            "no slot became free within 30.0 s; retry later",
        ),
        (
            Exhausted("no slot became free within 30.0 s; retry later or raise max_queue_time"),
            CONFIG,
            None,
            "no slot became free within 30.0 s; retry later or raise max_queue_time",
        ),
        (
            NotFound("there is no model 'x'; leave model empty", reason="MODEL_NOT_FOUND"),
            CONFIG,
            "model",
            "there is no model 'x'; leave model empty",
        ),
        (
            SpeechError("the server ended the stream", field="nothing.known"),
            CONFIG,
            None,
            "the server ended the stream",
        ),
    ],
)
def test_messages_are_in_the_words_of_the_caller(error, fields, param, message):
    found = from_server(error, names_of(fields, {}))
    assert (found.param, found.message) == (param, message)


@pytest.mark.parametrize("target", ["127.0.0.1:1", "unix:/tmp/no-such-socket-of-the-gateway"])
async def test_words_about_the_connection_stay_in_the_log(serve_gateway, caplog, target):
    async with serve_gateway(target, server={"retry_seconds": 0}) as gateway:
        response = await gateway.speak("Hello.")
        listed = await gateway.http.get("/v1/audio/voices")
        socket = await socket_error(gateway, {"type": "config"}, {"type": "text", "text": "Hello."})
    for error in (response.json()["error"], listed.json()["error"], socket):
        check(error, None, "the server cannot be reached, or has ended; try again")
    assert (response.status_code, listed.status_code) == (503, 503)
    assert f"no server answers at {target}" in caplog.text


async def test_another_kind_of_server_is_no_matter_of_the_caller(served, gateway, serve_gateway, caplog):
    host, port = gateway.address
    async with serve_gateway(f"{host}:{port}", server={"retry_seconds": 0}) as wrong:
        response = await wrong.speak("Hello.")
    assert response.status_code == 503
    check(response.json()["error"], None, "cannot be reached")
    assert "is a web server of HTTP/1.1" in caplog.text


async def test_a_missing_key_is_asked_for_without_words_of_grpc(tmp_path, serve_front, serve_gateway):
    file = tmp_path / "keys.toml"
    await asyncio.to_thread(create, "ada", file)
    async with serve_front(server={"auth": {"keys": file}}) as served, serve_gateway(served.address) as gateway:
        response = await gateway.speak("Hello.")
    assert response.status_code == 401
    check(response.json()["error"], None, "send the key as `authorization: Bearer KEY`")
