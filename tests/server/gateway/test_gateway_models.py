"""Several models behind the gateway, which OpenAI's field `model` chooses from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.servers.uploads import recording

from voxcpm_server.voices.presets import Preset

PRESETS = ((Preset(name="anna", kind="reference", recording="a.wav"), recording(9)),)


@pytest.fixture
async def two(serve_front, serve_gateway, fake):
    small = fake()
    small.info = replace(small.info, name="small")
    large = fake(info=replace(small.info, name="org/Large", fingerprint="e" * 40, languages=("de",)))
    async with (
        serve_front(small, others=(large,), presets=PRESETS) as served,
        serve_gateway(served.address) as gateway,
    ):
        yield gateway, small, large


@pytest.mark.parametrize(
    ("name", "index"),
    [("small", 0), ("org/Large", 1), ("Large", 1), ("large", 1), ("tts-1", 0), ("gpt-4o-mini-tts-2025-12-15", 0)],
)
async def test_the_field_model_chooses_a_model(two, name, index):
    gateway, *pools = two
    assert (await gateway.speak("Hello.", model=name, voice="alloy")).status_code == 200
    assert [len(pool.requests) for pool in pools] == [1 - index, index]
    assert pools[index].requests[0].conditioning.reference is not None  # the preset of this model


async def test_models_and_their_names_are_listed(two):
    gateway, *_ = two
    found = {model["id"]: model for model in (await gateway.http.get("/v1/models")).json()["data"]}
    assert list(found)[:3] == ["small", "org/Large", "Large"]
    assert found["tts-1"]["root"] == "small"
    assert (found["Large"]["root"], found["Large"]["languages"]) == ("org/Large", ["de"])
    for name, model in found.items():
        assert (await gateway.http.get(f"/v1/models/{name}")).json() == model
    missing = await gateway.speak("Hello.", model="huge")
    assert missing.status_code == 404
    assert "there are small, org/Large, Large, tts-1" in missing.json()["error"]["message"]


async def test_a_voice_is_stored_for_the_model_of_the_form(two):
    gateway, _, large = two
    form: dict[str, Any] = {"name": "Ada", "consent": "2026-11-01", "model": "Large"}
    files = {"audio_sample": ("a.wav", recording(1), "audio/wav")}
    assert (await gateway.http.post("/v1/audio/voices", data=form, files=files)).status_code == 200
    assert (await gateway.speak("Hello.", model="Large", voice="Ada")).status_code == 200
    refused = await gateway.speak("Hello.", model="small", voice="Ada")
    assert refused.status_code == 400
    assert "was made for the model 'org/Large'" in refused.json()["error"]["message"]
    assert len(large.requests) == 1


async def test_voices_have_an_id_of_their_own_and_the_name_of_their_model(two):
    gateway, small, large = two
    form: dict[str, Any] = {"name": "Ada", "consent": "2026-11-01", "model": "Large"}
    files = {"audio_sample": ("a.wav", recording(1), "audio/wav")}
    stored = (await gateway.http.post("/v1/audio/voices", data=form, files=files)).json()
    assert stored["model"] == "org/Large"
    listed = (await gateway.http.get("/v1/audio/voices")).json()["voices"]
    assert [(one["name"], one["model"]) for one in listed] == [
        ("Ada", "org/Large"),
        ("anna", "small"),
        ("anna", "org/Large"),
    ]
    ids = [one["id"] for one in listed]
    assert ids[:2] == [stored["id"], "anna"] and ids[2].startswith("ref_") and len(set(ids)) == 3
    for one, pool in zip(listed[1:], (small, large), strict=True):
        assert (await gateway.speak("Hello.", model=one["model"], voice=one["id"])).status_code == 200
        assert len(pool.requests) == 1
    refused = (await gateway.speak("Hello.", model="tts-1", voice=ids[2])).json()["error"]
    assert "voice 'anna' is a preset of the model 'org/Large'" in refused["message"]


@pytest.mark.parametrize(
    ("name", "model"), [("small", "small"), ("tts-1", "small"), ("Large", "org/Large"), ("org/Large", "org/Large")]
)
async def test_voices_of_one_model_are_listed_with_their_names(two, name, model):
    gateway, *_ = two
    listed = (await gateway.http.get("/v1/audio/voices", params={"model": name})).json()["voices"]
    assert [(one["id"], one["model"]) for one in listed] == [("anna", model)]
    missing = await gateway.http.get("/v1/audio/voices", params={"model": "huge"})
    assert (missing.status_code, missing.json()["error"]["param"]) == (404, "model")
