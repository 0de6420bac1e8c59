"""No value of JSON in any documented field makes the gateway fail: each is served, or refused with the field's name."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.clients.gateway_sockets import answers
from support.clients.json_values import HALF, json_texts
from support.servers.uploads import recording

from voxcpm_gateway.requests.fields import Field
from voxcpm_gateway.routes import older, openai
from voxcpm_gateway.speech import speech_request
from voxcpm_gateway.speech.websocket_messages import MESSAGES

WAV = base64.b64encode(recording(1)).decode()
SPEECH, GENERATE = speech_request.FIELDS, older.GENERATE_FIELDS
BODIES: list[tuple[str, Sequence[Field], dict[str, Any]]] = [  # with the fields that they need
    ("/v1/audio/speech", SPEECH, {"input": "a"}),
    ("/generate", GENERATE, {"target_text": "a"}),
    ("/generate_blocking", GENERATE[:-1], {"target_text": "a"}),
    ("/generate_blocking_wav", GENERATE[:-1], {"target_text": "a"}),
    ("/encode_latents", older.ENCODE_FIELDS, {"wav_base64": WAV}),
    ("/add_prompt", older.PROMPT_FIELDS, {"wav_base64": WAV, "prompt_text": "a"}),
    ("/add_reference", older.REFERENCE_FIELDS, {"wav_base64": WAV}),
    ("/add_hifi", older.PROMPT_FIELDS, {"wav_base64": WAV, "prompt_text": "a"}),
]
NEEDS = {  # the fields that a field may also be refused for
    "ref_text": "ref_audio",
    "prompt_wav_base64": "prompt_text",
    "prompt_latents_base64": "prompt_text",
    "speaker": "voice",
}
LONGEST = 700  # characters of a message
FORM = openai.VOICE_FIELDS
NEEDED = {  # fields of messages, and of an object in them
    "text": {"text": "a"},
    "pause": {"milliseconds": 10},
    "prompt": {"audio": WAV, "transcript": "a"},
}
DANGEROUS = (
    f'"{HALF}"',
    f'{{"{HALF}": "x"}}',
    f'{{"id": "{HALF}"}}',
    "9" * 309,
    "9" * 5000,
    "1e400",
    "7.0",
    "NaN",
    "[]",
)
TEXTS = st.text(st.characters(exclude_categories=[]), max_size=20) | st.text("x", min_size=190, max_size=3000)


def leaves(fields: Sequence[Field], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all fields, also of those inside objects, and of one that does not exist."""
    found = [(*path, "nonsense")]
    for field in fields:
        found += [(*path, field.name), *(leaves(field.fields, (*path, field.name)) if field.fields else ())]
    return found


def body_with(needed: dict[str, Any], path: tuple[str, ...], value: str) -> str:
    """A body as text, with a value as JSON writes it in one field."""
    name, *inner = path
    if inner:
        value = body_with(NEEDED.get(name, {}), tuple(inner), value)
    given = {other: json.dumps(one) for other, one in needed.items()} | {name: value}
    return "{" + ", ".join(f'"{name}": {one}' for name, one in given.items()) + "}"


def check(status: int, error: dict[str, Any], path: tuple[str, ...], value: str) -> None:
    """An answer is a success, or an error in OpenAI's shape that names the field."""
    seen = (status, error, path, value[:60])
    assert status in (200, 400, 404) or (status == 401 and path == ("key",)), seen
    if status == 200:
        return
    assert {"message", "type", "param", "code"} <= error.keys(), seen
    assert 10 < len(error["message"]) < LONGEST, seen
    if error["code"] == "invalid_json":
        assert "nested too deeply" in error["message"], seen
        return
    named = error["param"]
    assert named is not None, seen
    twice = "is given twice" in error["message"]  # the parser of JSON knows no path
    above = ".".join(path)
    assert twice or named == NEEDS.get(path[0]) or named.startswith(above) or above.startswith(f"{named}."), seen


async def post(gateway, path: str, body: str) -> tuple[int, dict[str, Any]]:
    headers = {"content-type": "application/json"}
    response = await gateway.http.post(path, content=body.encode(), headers=headers)
    return response.status_code, {} if response.status_code == 200 else response.json()["error"]


@pytest.mark.parametrize(("address", "fields", "needed"), BODIES, ids=[body[0] for body in BODIES])
async def test_dangerous_values_in_every_field_of_a_body(gateway, address, fields, needed):
    for path in leaves(fields):
        for value in DANGEROUS:
            check(*await post(gateway, address, body_with(needed, path, value)), path, value)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    where=st.sampled_from([(address, path) for address, fields, _ in BODIES for path in leaves(fields)]),
    value=json_texts(),
)
async def test_any_value_in_any_field_of_a_body(gateway, where, value):
    address, path = where
    needed = next(needed for known, _, needed in BODIES if known == address)
    check(*await post(gateway, address, body_with(needed, path, value)), path, value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from([field.name for field in FORM]), text=TEXTS)
async def test_any_text_in_any_field_of_a_form(gateway, name, text):
    fields = {"name": "Ada", "consent": "yes", name: text}
    files: list[Any] = [(one, (None, value.encode("utf-8", "surrogatepass"))) for one, value in fields.items()]
    files.append(("audio_sample", ("a.wav", b"RIFF")))
    response = await gateway.http.post("/v1/audio/voices", files=files)
    assert response.status_code in (400, 404), response.text
    assert response.json()["error"]["param"] in (name, "audio_sample", "model")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    where=st.sampled_from([(kind, path) for kind in MESSAGES for path in leaves(MESSAGES[kind])]), value=json_texts()
)
@example(where=("config", ("prompt", "audio")), value='""')
async def test_any_value_in_any_field_of_a_message(gateway, where, value):
    kind, path = where
    message = body_with({"type": kind, **NEEDED.get(kind, {})}, path, value)
    before = () if kind == "config" else ({"type": "config"}, {"type": "text", "text": "a"})
    after = () if kind == "finish" else ({"type": "text", "text": "b"}, {"type": "finish"})
    found = await answers("{}:{}".format(*gateway.address), (*before, message, *after))
    assert found.code == 1000 or 4400 <= found.code < 4500, (found.code, found.reason, where, value[:60])
    if found.code != 1000:
        check(found.code - 4000, found.error, path, value)
