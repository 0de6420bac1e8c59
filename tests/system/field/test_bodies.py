"""Generated bodies to a real gateway and its server: none makes either of them fail."""

from __future__ import annotations

import base64
import http.client
import json
import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from support.clients.gateway_sockets import answers
from support.clients.json_values import EDGES, HALF, random_json
from support.servers.running import Server, serving
from support.servers.uploads import recording
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import Client
from voxcpm_gateway.requests.fields import Field
from voxcpm_gateway.routes import older, openai
from voxcpm_gateway.speech import speech_request
from voxcpm_gateway.speech.websocket_messages import MESSAGES

WAV = base64.b64encode(recording(1)).decode()
SHORT = {"max_steps": 2, "inference_timesteps": 4}
BODIES: dict[str, tuple[Sequence[Field], dict[str, Any]]] = {  # with the fields that they need, and short speech
    "/v1/audio/speech": (speech_request.FIELDS, {"input": "a", "extra_params": SHORT}),
    "/generate": (older.GENERATE_FIELDS, {"target_text": "a", "max_generate_length": 2}),
    "/encode_latents": (older.ENCODE_FIELDS, {"wav_base64": WAV}),
    "/add_hifi": (older.PROMPT_FIELDS, {"wav_base64": WAV, "prompt_text": "a"}),
}
CONFIG = {"type": "config", "timesteps": 4, "max_steps": 2}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the random model, with its gateway."""
    with serving(tmp_path_factory.mktemp("voices"), "--http", "127.0.0.1:0") as server:
        yield server
        with Client(server.address) as client:
            assert client.say("Still here.", max_steps=4, timesteps=4).samples.any()
        assert not server.fault(), server.fault()


@pytest.fixture(scope="module")
def address(tiny: Server) -> str:
    found = re.search(r"HTTP is at http://(\S+)", tiny.log)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def connection(address: str) -> Iterator[http.client.HTTPConnection]:
    opened = http.client.HTTPConnection(address, timeout=HANG_SECONDS)
    yield opened
    opened.close()


def post(connection: http.client.HTTPConnection, path: str, body: str) -> None:
    """Send a body. The answer is a success, or an error in OpenAI's shape with a field of the body or of the table."""
    connection.request("POST", path, body.encode(), {"content-type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    seen = (path, body[:300], response.status, content[:600])
    assert response.status in (200, 400, 404), seen
    if response.status != 200:
        error = json.loads(content)["error"]
        assert error.keys() == {"message", "type", "param", "code"}, seen
        assert 10 < len(error["message"]) < 1000, seen
        assert error["param"] is not None or error["code"] == "invalid_json", seen


def written(values: dict[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}"


def plain(values: dict[str, Any]) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in values.items()}


@pytest.mark.parametrize("path", BODIES)
def test_every_field_with_every_edge_of_json(connection, path):
    fields, needed = BODIES[path]
    for field in fields:
        for value in EDGES:
            post(connection, path, written(plain(needed) | {field.name: value}))


def test_generated_bodies(connection):
    """With any values in some of the fields, and in fields that do not exist, and bodies that are no objects."""
    random = Random(38)
    for _ in range(600):
        path, (fields, needed) = random.choice(list(BODIES.items()))
        names = [field.name for field in fields] + ["", "nonsense", HALF]
        some = {name: random_json(random) for name in random.sample(names, random.randrange(1, 4))}
        post(connection, path, random_json(random) if random.random() < 0.1 else written(plain(needed) | some))


async def test_generated_sockets(address):
    """Each ends with a code of the documentation, and with the reason if it fails."""
    random = Random(38)
    names = sorted({field.name for fields in MESSAGES.values() for field in fields})
    for _ in range(150):
        messages: list[Any] = [CONFIG] if random.random() < 0.7 else []
        for _ in range(random.randrange(3)):
            fields = {name: random_json(random) for name in random.sample(names, random.randrange(3))}
            messages.append(written({"type": json.dumps(random.choice(list(MESSAGES)))} | fields))
        found = await answers(address, [*messages, {"type": "finish"}, {"type": "finish"}])
        assert 4400 <= found.code < 4500, (found, messages)
        assert found.error["message"].startswith(found.reason.rstrip("\ufffd")), (found, messages)


@pytest.mark.parametrize("name", [field.name for field in openai.VOICE_FIELDS if field.kind != "file"])
def test_every_field_of_the_form_with_odd_bytes(connection, name):
    for value in (b"", b"\xff\xfe", b"\xed\xa0\xbd", b"\x00", "\u202e".encode(), b"x" * 70_000, b"--b", b"\r\n"):
        parts = {"name": b"Ada", "consent": b"yes", name: value}
        body = b"".join(
            b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (field.encode(), one)
            for field, one in parts.items()
        )
        body += b'--b\r\nContent-Disposition: form-data; name="audio_sample"; filename="\xff"\r\n\r\nRIFF\r\n--b--\r\n'
        connection.request("POST", "/v1/audio/voices", body, {"content-type": "multipart/form-data; boundary=b"})
        response = connection.getresponse()
        content = response.read()
        assert response.status in (400, 404), (name, value[:20], content)
        assert json.loads(content)["error"]["message"]
