"""The routes of the FastAPI services that came before."""

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from support.engines.voice_parts import latents_of
from support.servers.uploads import recording

from voxcpm_grpc.audio.uploads import decode

WAV = {"wav_base64": base64.b64encode(recording(1)).decode(), "wav_format": "wav"}


async def generate(gateway, path: str = "/generate", **fields):
    return await gateway.http.post(path, json={"target_text": "Hello there.", **fields})


async def test_generate_streams_mp3_or_pcm_with_the_headers_of_the_service(gateway, served):
    rate = str(served.pool.info.output_sample_rate)
    mp3 = await generate(gateway, max_generate_length=2000, temperature=1.0, cfg_value=1.5, prompt_text=None)
    assert mp3.headers["content-type"] == "audio/mpeg"
    assert mp3.headers["x-audio-encoding"] == "mp3"
    assert mp3.headers["x-audio-channels"] == "1"
    pcm = await generate(gateway, response_format="pcm", seed=3)
    assert pcm.headers["content-type"] == f"audio/L16;rate={rate};channels=1"
    assert (pcm.headers["x-audio-sample-rate"], pcm.headers["x-audio-encoding"]) == (rate, "s16le")
    assert len(pcm.content) == 2 * len("Hello there.") * served.pool.info.samples_per_step
    assert served.pool.requests[0].sampling.cfg_value == 1.5
    assert served.pool.requests[0].sampling.max_steps == 2000


async def test_the_blocking_routes_send_the_whole_file_with_its_length(gateway):
    for path, kind in (("/generate_blocking", "audio/mpeg"), ("/generate_blocking_wav", "audio/wav")):
        response = await generate(gateway, path)
        assert response.headers["content-type"] == kind
        assert int(response.headers["content-length"]) == len(response.content)
        assert "x-audio-sample-rate" in response.headers
    assert response.content[:4] == b"RIFF"


async def test_latents_are_encoded_once_and_used_again(gateway, served):
    info = served.pool.info
    encoded = (await gateway.http.post("/encode_latents", json=WAV)).json()
    assert encoded["latents_dtype"] == "float32"
    assert (encoded["channels"], encoded["sample_rate"]) == (1, info.output_sample_rate)
    latents = np.frombuffer(base64.b64decode(encoded["prompt_latents_base64"]), "<f4")
    assert latents.reshape(-1, encoded["feat_dim"]).shape[0] % info.latents.frames == 0
    fields = {"prompt_latents_base64": encoded["prompt_latents_base64"], "prompt_text": "One two. "}
    assert (await generate(gateway, **fields)).status_code == 200
    same = {"prompt_wav_base64": WAV["wav_base64"], "prompt_wav_format": "wav", "prompt_text": "One two. "}
    assert (await generate(gateway, **same)).status_code == 200
    first, second = (request.conditioning.prompt for request in served.pool.requests)
    np.testing.assert_array_equal(latents_of(first), latents_of(second))
    reference = (await gateway.http.post("/encode_latents", json=WAV | {"role": "reference"})).json()
    fields = {"ref_audio_latents_base64": reference["prompt_latents_base64"]}
    assert (await generate(gateway, **fields)).status_code == 200


@pytest.mark.parametrize("name", ["prompt_latents_base64", "ref_audio_latents_base64"])
async def test_latents_for_a_model_without_them_are_refused(serve_front, serve_gateway, fake, name):
    pool = fake()
    pool.info = replace(pool.info, latents=None)
    words = {"prompt_text": "One two. "} if name.startswith("prompt") else {}
    async with serve_front(pool) as served, serve_gateway(served.address) as gateway:
        refused = await generate(gateway, **{name: base64.b64encode(bytes(64)).decode()}, **words)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
    assert "fake has no latents; send a recording" in refused.json()["detail"]


async def test_prompts_references_and_hifi_are_added_listed_used_and_deleted(gateway, served):
    prompt = (await gateway.http.post("/add_prompt", json=WAV | {"prompt_text": "One two. "})).json()
    reference = (await gateway.http.post("/add_reference", json=WAV)).json()
    hifi = (await gateway.http.post("/add_hifi", json=WAV | {"prompt_text": "One two. ", "name": "Ada"})).json()
    assert prompt.keys() == {"prompt_id", "feat_dim", "sample_rate", "channels"}
    assert hifi["prompt_id"] == prompt["prompt_id"]
    assert hifi["reference_id"] == reference["reference_id"]
    for fields in (
        {"prompt_id": prompt["prompt_id"]},
        {"ref_audio_id": reference["reference_id"]},
        {"hifi_id": hifi["hifi_id"]},
        {"prompt_id": prompt["prompt_id"], "ref_audio_id": reference["reference_id"]},
    ):
        assert (await generate(gateway, **fields)).status_code == 200, fields
    used = [request.conditioning for request in served.pool.requests]
    assert [(one.prompt is not None, one.reference is not None) for one in used] == [
        (True, False),
        (False, True),
        (True, True),
        (True, True),
    ]
    for folder, key, id in (
        ("hifi", "hifi_id", hifi["hifi_id"]),
        ("prompts", "prompt_id", prompt["prompt_id"]),
        ("references", "reference_id", reference["reference_id"]),
    ):
        listed = (await gateway.http.get(f"/{folder}")).json()[folder]
        assert [one[key] for one in listed] == ([] if folder != "hifi" else [id]) or listed[0][key] == id
        deleted = await gateway.http.delete(f"/{folder}/{id}")
        assert deleted.status_code == (200 if folder == "hifi" else 404)  # its members went with it


async def test_a_voice_of_another_kind_is_not_deleted(gateway):
    reference = (await gateway.http.post("/add_reference", json=WAV)).json()["reference_id"]
    assert (await gateway.http.delete(f"/prompts/{reference}")).status_code == 404
    assert (await gateway.http.delete(f"/references/{reference}")).json() is None


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"target_text": " "}, "target_text", "is empty"),
        ({"text": "x"}, "text", "unknown"),
        ({"prompt_id": "prm_x", "hifi_id": "hifi_x"}, "hifi_id", "exclude each other"),
        ({"ref_audio_id": "x", "ref_audio_wav_base64": "AAAA"}, "ref_audio_id", "exclude each other"),
        ({"prompt_wav_base64": "AAAA"}, "prompt_text", "needs prompt_text"),
        ({"prompt_text": "x"}, "prompt_text", "remove it"),
        ({"prompt_latents_base64": "AAAA", "prompt_text": "x"}, "prompt_latents_base64", "3 bytes"),
        ({"ref_audio_wav_base64": "?"}, "ref_audio_wav_base64", "not base64"),
        ({"lora_name": "x"}, "lora_name", "unknown"),
        ({"max_generate_length": 0}, "max_generate_length", "1 to"),
        ({"response_format": "wav"}, "response_format", "mp3, pcm"),
    ],
)
async def test_wrong_fields_are_named_in_both_shapes(gateway, fields, param, words):
    response = await generate(gateway, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert words in response.json()["detail"]


async def test_the_description_of_the_model_has_the_keys_of_the_service(gateway, served):
    found = (await gateway.http.get("/info")).json()
    assert found["model"] == {
        "sample_rate": served.pool.info.output_sample_rate,
        "channels": 1,
        "feat_dim": served.pool.info.latents.dim,
        "patch_size": served.pool.info.latents.frames,
        "model_path": "fake",
    }
    assert found["lora"]["loaded"] is False
    assert "bitrate_kbps" in found["mp3"]


async def test_the_wav_of_the_blocking_route_decodes(gateway, served):
    wav = (await generate(gateway, "/generate_blocking_wav")).content
    rate = served.pool.info.output_sample_rate
    found = decode(io.BytesIO(wav).getvalue(), target_rate=rate, max_seconds=60, max_bytes=1 << 24)
    assert len(found.waveform) == len("Hello there.") * served.pool.info.samples_per_step
