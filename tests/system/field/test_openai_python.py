"""OpenAI's published Python package with the fields that its users send."""

from __future__ import annotations

import base64
import io
import textwrap
import wave
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from openai import OpenAI
from support.servers.uploads import recording

TEXT = "One two three."
RECORDING = base64.urlsafe_b64encode(recording(5)).decode().rstrip("=")


@pytest.fixture
def client(site: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def speak(client: OpenAI, **fields: Any) -> bytes:
    wanted = {"model": "tts-1", "voice": "default", "input": TEXT, "response_format": "pcm", "extra_body": {"seed": 7}}
    return client.audio.speech.create(**(wanted | fields)).read()


def test_dated_models_cases_and_whole_numbers_with_a_point_are_the_same_request(client):
    plain = np.frombuffer(speak(client), "<i2").astype(int)
    for fields in (
        {"model": "tts-1-1106"},
        {"model": "tts-1-hd-1106"},
        {"model": "gpt-4o-mini-tts-2025-12-15"},
        {"response_format": "PCM"},
        {"extra_body": {"seed": 7.0, "language": "en_US"}},
        {"extra_body": {"seed": 7, "ref_audio": "", "ref_text": "", "language": "", "lexicon": {}}},
        {"instructions": "", "voice": ""},
    ):
        same = np.frombuffer(speak(client, **fields), "<i2").astype(int)
        assert len(same) == len(plain)
        assert np.abs(same - plain).max() <= 8, fields  # rounding of another batch


def test_upper_case_formats_are_audio_of_that_format(client):
    with wave.open(io.BytesIO(speak(client, response_format="WAV"))) as file:
        assert file.getnchannels() == 1
    assert speak(client, response_format="Flac")[:4] == b"fLaC"


@pytest.mark.parametrize("head", ["data:audio/wav;base64,", "DATA:audio/wav; codecs=1;BASE64,"])
def test_a_recording_may_come_in_lines_and_in_the_alphabet_of_urls(client, head):
    url = head + "\n".join(textwrap.wrap(RECORDING, 76))
    assert speak(client, extra_body={"ref_audio": url, "seed": 7})


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": "aac"}, "response_format", "must be one of mp3, opus, flac, wav, pcm"),
        ({"speed": 4.0}, "speed", "speed is 4; it must be 0.5 to 2"),
        ({"extra_body": {"seed": 10**400}}, "seed", "it must be 0 to 9223372036854775807"),
        ({"extra_body": {"ref_text": "One."}}, "ref_text", "needs ref_audio"),
        ({"voice": "miles", "extra_body": {"ref_audio": "data:;base64,AAAA"}}, "voice", "send the voice 'default'"),
    ],
)
def test_errors_name_the_field_of_the_request(client, fields, param, words):
    with pytest.raises(openai.BadRequestError) as raised:
        speak(client, **fields)
    assert raised.value.param == param
    assert words in raised.value.message
