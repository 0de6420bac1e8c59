"""Requests as programs for OpenAI's API write them: empty fields, any case, dated names, all spellings of base64."""

from __future__ import annotations

import base64
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support.clients.gateway_sockets import answers
from support.servers.uploads import recording

from voxcpm_gateway.speech import speech_request
from voxcpm_server.voices.presets import Preset

pytestmark = pytest.mark.thorough

WAV = recording(5)
PLAIN = base64.b64encode(WAV).decode()
URL_SAFE = base64.urlsafe_b64encode(WAV).decode()
PAGE = (Path(__file__).parents[3] / "docs" / "from-openai.md").read_text("utf-8")


@pytest.mark.parametrize(
    "url",
    [
        f"data:audio/wav;base64,{PLAIN}",
        f"DATA:Audio/WAV;BASE64,{PLAIN}",
        f"data:audio/wav;codecs=1;name=a%20b.wav;base64,{PLAIN}",
        f"data:audio/wav; base64, {PLAIN}",
        f"data:;base64,{PLAIN}",
        f"  data:audio/wav;base64,{PLAIN}\n",
        "data:audio/wav;base64,\r\n" + "\r\n".join(textwrap.wrap(PLAIN, 76)),
        f"data:audio/wav;base64,{PLAIN.rstrip('=')}",
        f"data:audio/wav;base64,{PLAIN}==",
        f"data:audio/wav;base64,{URL_SAFE}",
        f"data:audio/wav;base64,{URL_SAFE.rstrip('=')}",
        "data:audio/wav;base64," + PLAIN.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
    ],
)
async def test_a_data_url_may_be_written_in_every_usual_way(gateway, served, url):
    response = await gateway.speak("Hello.", ref_audio=url)
    assert response.status_code == 200, response.text
    assert served.pool.requests[0].conditioning.reference is not None


@pytest.mark.parametrize("written", [PLAIN, URL_SAFE.rstrip("="), "\n".join(textwrap.wrap(PLAIN, 64))])
async def test_base64_of_the_older_routes_and_the_websocket_may_be_written_so_too(gateway, written):
    added = await gateway.http.post("/add_reference", json={"wav_base64": written})
    assert added.status_code == 200, added.text
    config = {"type": "config", "reference": {"audio": written}}
    found = await answers(address(gateway), [config, {"type": "text", "text": "One."}, {"type": "finish"}])
    assert found.code == 1000, found.error


def address(gateway) -> str:
    return "{}:{}".format(*gateway.address)


@pytest.mark.parametrize("url", ["data:audio/wav;base64,A", "data:audio/wav;base64,A=AA", "data:audio/wav;base64,ä"])
async def test_what_is_no_base64_is_refused(gateway, url):
    response = await gateway.speak("Hello.", ref_audio=url)
    assert response.status_code == 400
    assert "ref_audio is not base64" in response.json()["error"]["message"]


STRINGS = [field.name for field in speech_request.FIELDS if field.kind in ("string", "voice")]


@pytest.mark.parametrize("empty", ["", None])
async def test_empty_fields_count_as_left_out(gateway, served, empty):
    plain = await gateway.speak("Hello.", seed=3, response_format="pcm")
    fields: dict[str, Any] = dict.fromkeys(STRINGS, empty) | {"voice": {"id": ""}, "seed": 3, "response_format": "pcm"}
    assert (await gateway.speak("Hello.", **fields)).content == plain.content


async def test_an_empty_adapter_is_none_and_an_empty_text_is_missing(gateway):
    response = await gateway.speak("")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input"


async def test_empty_fields_of_the_websocket_count_as_left_out(gateway):
    empty = {"voice": "", "format": "", "language": "", "segmentation": "", "style": "", "key": "", "model": ""}
    messages = [{"type": "config", **empty}, {"type": "text", "text": "One."}, {"type": "finish"}]
    assert (await answers(address(gateway), messages)).code == 1000


@pytest.mark.parametrize(("wanted", "kind"), [("MP3", "audio/mpeg"), ("Opus", "audio/ogg"), ("PCM", "audio/pcm")])
async def test_a_format_may_have_any_case(gateway, wanted, kind):
    response = await gateway.speak("Hello.", response_format=wanted)
    assert response.status_code == 200
    assert response.headers["content-type"] == kind
    assert (await gateway.speak("Hello.", stream_format="SSE")).headers["content-type"] == "text/event-stream"


async def test_choices_of_the_other_routes_may_have_any_case(gateway):
    older = await gateway.http.post("/generate", json={"target_text": "Hello.", "response_format": "PCM"})
    assert older.headers["x-audio-encoding"] == "s16le"
    encoded = await gateway.http.post("/encode_latents", json={"wav_base64": PLAIN, "role": "Reference"})
    assert encoded.status_code == 200
    config = {"type": "Config", "format": "WAV", "segmentation": "Manual", "priority": "BATCH"}
    found = await answers(address(gateway), [config, {"type": "text", "text": "One."}, {"type": "FINISH"}])
    assert (found.code, found.audio[:4]) == (1000, b"RIFF")


@pytest.mark.parametrize("language", ["en_US", "EN", "DE_de", "zh_Hans_CN", "auto", "eng", "English", "中文"])
async def test_a_language_may_have_the_names_that_callers_know(gateway, served, language):
    assert (await gateway.speak("Hello.", language=language)).status_code == 200
    config = {"type": "config", "language": language}
    found = await answers(address(gateway), [config, {"type": "text", "text": "One."}, {"type": "finish"}])
    assert found.code == 1000


@pytest.mark.parametrize(
    ("name", "status"),
    [
        *(
            (name, 200)
            for name in ("tts-1-1106", "tts-1-hd-1106", "gpt-4o-mini-tts-2025-12-15", "TTS-1-HD", "Tts-1-1106")
        ),
        *(
            (name, 404)
            for name in ("tts-2", "tts-1-110", "tts-1-11066", "gpt-4o-mini-tts-2025-12", "tts-1-1106-x", "fake-1106")
        ),
    ],
)
async def test_names_of_models_may_have_a_date(gateway, name, status):
    assert (await gateway.speak("Hello.", model=name)).status_code == status
    described = await gateway.http.get(f"/v1/models/{name}")
    assert described.status_code == status
    assert status == 404 or described.json()["id"] == name


PRESETS = [
    (Preset(name="ann", kind="reference", recording="ann.wav", transcript="", labels={}), recording(0)),
    (Preset(name="eve", kind="prompt", recording="eve.wav", transcript="One two. ", labels={}), recording(1)),
]
URL = f"data:audio/wav;base64,{PLAIN}"
VOICES: dict[str, Any] = {"-": {}, "`default`": {"voice": "default"}, "a reference": {"voice": "ann"}}
VOICES |= {"a prompt or hifi voice": {"voice": "eve"}, "any other": {"voice": "ann"}}
COLUMNS = (
    VOICES,
    {"-": {}, "given": {"ref_audio": URL}},
    {"-": {}, "given": {"ref_text": "One two."}},
    {"-": {}, "given": {"instructions": "a calm old man"}},
)
ROWS = [
    [cell.strip() for cell in row.strip("|").split("|")]
    for row in PAGE.partition("| `voice` | `ref_audio` |")[2].partition("\n\n")[0].splitlines()[2:]
]


def test_the_page_has_all_combinations():
    rows = [tuple(row[:4]) for row in ROWS]
    assert len(set(rows)) == len(rows) >= 10


@pytest.mark.parametrize("row", ROWS, ids=["; ".join(row[:4]) for row in ROWS])
async def test_each_combination_does_what_the_page_says(serve_front, serve_gateway, row):
    fields: dict[str, Any] = {}
    for cell, choices in zip(row, COLUMNS, strict=False):
        fields |= choices[cell]
    async with serve_front(presets=PRESETS) as served, serve_gateway(served.address) as gateway:
        response = await gateway.speak("Hello.", **fields)
        outcome = row[4]
        if (refused := re.match(r"refused, `param` is `(\w+)`", outcome)) is not None:
            assert response.status_code == 400, response.text
            assert response.json()["error"]["param"] == refused[1]
            return
        assert response.status_code == 200, response.text
        (asked,) = served.pool.requests
    assert (asked.conditioning.prompt is not None) == ("continues" in outcome)
    assert (asked.conditioning.reference is not None) == ("timbre" in outcome)
    assert (asked.style == "a calm old man") == ("instructions" in fields)
