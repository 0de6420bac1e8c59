"""The parts of the web page that the gateway makes: the description of the server, and files of what the page has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from voxcpm_gateway.page import encoding
from voxcpm_grpc.audio.uploads import decode

RATE = 16000


def tone(seconds: float = 1.0) -> bytes:
    return (np.sin(np.arange(int(seconds * RATE)) / 10) * 12000).astype("<i2").tobytes()


async def encoded(gateway, body: bytes, **query: str):
    return await gateway.http.post("/page/encode", params={"sample_rate": str(RATE), **query}, content=body)


@pytest.mark.parametrize(("format", "kind"), [("mp3", "audio/mpeg"), ("flac", "audio/flac"), ("opus", "audio/ogg")])
async def test_samples_of_the_page_become_a_file(gateway, format, kind):
    response = await encoded(gateway, tone(), format=format)
    assert (response.status_code, response.headers["content-type"]) == (200, kind)
    found = decode(response.content, target_rate=RATE, max_seconds=60, max_bytes=1 << 30).waveform
    assert len(found) == pytest.approx(RATE, abs=0.1 * RATE)  # MP3 and Opus pad
    assert np.abs(found).max() == pytest.approx(12000 / 32768, rel=0.1)


async def test_a_rate_that_opus_does_not_have_is_changed(gateway):
    response = await encoded(gateway, tone(), format="opus", sample_rate="22050")
    found = decode(response.content, target_rate=22050, max_seconds=60, max_bytes=1 << 30).waveform
    assert len(found) == pytest.approx(RATE, abs=0.1 * RATE)  # MP3 and Opus pad


@pytest.mark.parametrize(
    ("query", "body", "param", "words"),
    [
        ({"format": "aac"}, tone(), "format", "format is 'aac'; this gateway has mp3, flac, opus"),
        ({}, tone(), "format", "format is ''"),
        ({"format": "mp3", "sample_rate": "12345"}, tone(), "sample_rate", "it must be one of 8000"),
        ({"format": "mp3"}, b"odd", None, "the body has 3 bytes"),
    ],
)
async def test_what_cannot_be_encoded_is_refused(gateway, query, body, param, words):
    response = await encoded(gateway, body, **query)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert words in response.json()["error"]["message"]


async def test_a_body_beyond_the_limit_is_refused(served, serve_gateway):
    async with serve_gateway(served.address, max_body_bytes=1000) as gateway:
        assert (await encoded(gateway, tone(), format="mp3")).status_code == 413


async def test_a_gateway_without_the_packages_offers_wav_alone(gateway, monkeypatch):
    monkeypatch.setattr(encoding, "PACKAGES", ("no_such_package",))
    assert (await gateway.http.get("/page/model.json")).json()["formats"] == ["wav"]
    response = await encoded(gateway, tone(), format="mp3")
    assert "the extra `server`" in response.json()["error"]["message"]


async def test_the_page_learns_the_sampling_that_the_model_has(gateway):
    found = (await gateway.http.get("/page/model.json")).json()
    assert found["sampling"] == ["cfg_value", "timesteps", "temperature", "seed", "min_steps", "max_steps"]
    assert (found["default_temperature"], found["default_cfg_value"]) == (1, 2)


async def test_the_page_learns_what_the_model_can_do(serve_front, serve_gateway, fake):
    names = ("voice_kinds", "styles", "needs_voice", "chooses_voice", "speech_languages")
    pool = fake()
    lacks = dict.fromkeys(("prompt", "reference", "hifi", "style"), "{model} has none")
    info = replace(pool.info, abilities=replace(pool.info.abilities, **lacks, speaker="", language=""))
    for one, expected in (
        (pool.info, (["prompt", "reference", "hifi"], True, False, True, [])),
        (replace(info, speakers=("ann",), speech_languages=("de",)), (["speaker"], False, False, False, ["de"])),
    ):
        pool.info = one
        async with serve_front(pool) as served, serve_gateway(served.address) as gateway:
            found = (await gateway.http.get("/page/model.json")).json()
        assert tuple(found[name] for name in names) == expected


async def test_the_page_learns_of_every_model(serve_front, serve_gateway, fake):
    first, second = fake(), fake()
    second.info = replace(second.info, name="second", fingerprint="2" * 32, output_sample_rate=24000)
    async with serve_front(first, others=[second]) as served, serve_gateway(served.address) as gateway:
        default = (await gateway.http.get("/page/model.json")).json()
        other = (await gateway.http.get("/page/model.json", params={"model": "SECOND"})).json()
        missing = await gateway.http.get("/page/model.json", params={"model": "third"})
    assert default["models"] == other["models"] == [first.info.name, "second"]
    assert (default["model"], default["sample_rate"]) == (first.info.name, first.info.output_sample_rate)
    assert (other["model"], other["sample_rate"]) == ("second", 24000)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_the_page_learns_the_grpc_port_of_its_own_host_only(served, serve_gateway):
    port = int(served.address.rpartition(":")[2])
    async with serve_gateway(served.address) as gateway:
        found = (await gateway.http.get("/page/model.json")).json()
    assert found["grpc"] == {"port": port, "tls": False}
    assert found["formats"] == ["wav", "mp3", "flac", "opus"]
    async with serve_gateway(served.address, grpc_port=7, grpc_tls=True) as gateway:
        assert (await gateway.http.get("/page/model.json")).json()["grpc"] == {"port": 7, "tls": True}
