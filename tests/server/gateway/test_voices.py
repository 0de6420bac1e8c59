"""Voices and models of the gateway: their lists, aliases, uploads and deletes."""

from dataclasses import replace

import pytest
from support.servers.uploads import recording

from voxcpm_gateway.speech.voice_names import OPENAI_VOICES
from voxcpm_server.voices.presets import Preset


@pytest.fixture
async def named(serve_front, serve_gateway):
    """A gateway before a server with the presets ann and bob."""
    presets = [
        (Preset(name=name, kind="reference", recording=f"{name}.wav", transcript="", labels={}), recording(seed))
        for seed, name in enumerate(("ann", "bob"))
    ]
    async with (
        serve_front(presets=presets) as served,
        serve_gateway(served.address, voice_aliases={"Narrator": "bob", "nova": "ann"}) as gateway,
    ):
        gateway.served = served
        yield gateway


async def spoken_by(gateway, voice) -> bytes:
    response = await gateway.speak("Hello.", voice=voice, seed=1, response_format="pcm")
    assert response.status_code == 200, response.text
    return response.content


async def test_names_of_openai_stand_for_the_presets_and_aliases_come_first(named):
    ann, bob = await spoken_by(named, "ann"), await spoken_by(named, "bob")
    assert ann != bob
    assert await spoken_by(named, "alloy") == ann
    assert await spoken_by(named, "ash") == bob
    assert await spoken_by(named, "narrator") == bob
    assert await spoken_by(named, "nova") == ann
    assert {await spoken_by(named, {"id": name}) for name in OPENAI_VOICES} == {ann, bob}


async def test_a_caller_may_want_none_of_the_voices(serve_front, serve_gateway):
    presets = [(Preset(name="ann", kind="reference", recording="ann.wav", default=True), recording(1))]
    async with serve_front(presets=presets) as served, serve_gateway(served.address) as gateway:
        await gateway.speak("Hello.", no_voice=True)
        refused = (await gateway.speak("Hello.", no_voice=True, voice="ann")).json()["error"]
    assert served.pool.requests[-1].conditioning.reference is None
    assert refused["param"] == "no_voice"


async def test_voices_have_the_digest_of_their_recordings(named):
    voices = (await named.http.get("/v1/audio/voices")).json()["voices"]
    assert len({voice["digest"] for voice in voices}) == len(voices)
    assert all(voice["digest"] for voice in voices)


async def test_without_presets_openai_s_names_stand_for_the_default_voice(gateway):
    assert await spoken_by(gateway, "alloy") == await spoken_by(gateway, "default")


async def test_an_unknown_voice_is_not_found(named):
    response = await named.speak(voice="carl")
    assert response.status_code == 404
    assert "carl" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "voice"


async def test_a_voice_is_stored_listed_used_and_deleted(named):
    files = {"audio_sample": ("a.wav", recording(5), "audio/wav")}
    stored = await named.http.post(
        "/v1/audio/voices", data={"name": "Ada", "consent": "signed 2026-11-01"}, files=files
    )
    assert stored.status_code == 200, stored.text
    voice = stored.json()
    assert (voice["object"], voice["type"], voice["name"]) == ("audio.voice", "audio_sample", "Ada")
    assert voice["created_at"] > 0
    voices = (await named.http.get("/v1/audio/voices")).json()["voices"]
    assert [(one["id"], one["name"]) for one in voices] == [(voice["id"], "Ada"), ("ann", "ann"), ("bob", "bob")]
    assert voices[0]["labels"] == {"consent": "signed 2026-11-01"}
    assert await spoken_by(named, "Ada") == await spoken_by(named, {"id": voice["id"]})
    gone = await named.http.delete(f"/v1/audio/voices/{voice['id']}")
    assert gone.json() == {"id": voice["id"], "object": "audio.voice.deleted", "deleted": True}
    assert (await named.http.delete(f"/v1/audio/voices/{voice['id']}")).status_code == 404
    assert (await named.http.delete("/v1/audio/voices/ann")).status_code == 400  # a preset


async def test_a_recording_has_many_names_and_a_name_one_recording(named):
    async def store(seed: int, name: str, consent: str):
        files = {"audio_sample": ("a.wav", recording(seed), "audio/wav")}
        return await named.http.post("/v1/audio/voices", data={"name": name, "consent": consent}, files=files)

    ada = (await store(5, "Ada", "signed by A")).json()
    eve = (await store(5, "Eve", "signed by B")).json()
    expected = [
        {"name": "Eve", "labels": {"consent": "signed by B"}},
        {"name": "Ada", "labels": {"consent": "signed by A"}},
    ]
    assert (eve["id"], eve["name"], eve["names"]) == (ada["id"], "Eve", expected)
    assert eve["labels"] == {"consent": "signed by B"}
    assert (await named.http.get("/v1/audio/voices")).json()["voices"][0]["names"] == expected
    speech = await spoken_by(named, "Ada")
    assert await spoken_by(named, "Eve") == speech
    taken = await store(6, "ada", "signed by C")
    assert (taken.status_code, taken.json()["error"]["param"]) == (409, "name")
    assert "belongs to another recording" in taken.json()["error"]["message"]
    assert await spoken_by(named, "Ada") == speech
    gone = (await named.http.delete("/v1/audio/voices/Eve")).json()
    assert (gone["deleted"], gone["kept_names"]) == (True, ["Ada"])
    assert await spoken_by(named, "Ada") == speech
    assert (await named.speak(voice="Eve")).status_code == 404
    mine = (await store(0, "My Ann", "signed by D")).json()  # the recording of the preset ann
    assert (mine["name"], mine["labels"]) == ("My Ann", {"consent": "signed by D"})
    assert await spoken_by(named, "My Ann") == await spoken_by(named, "ann")


async def test_a_voice_has_an_adapter(serve_front, serve_gateway, fake):
    pool = fake()
    pool.set_adapters("anna")
    files = {"audio_sample": ("a.wav", recording(7), "audio/wav")}
    data = {"name": "Ada", "consent": "yes", "lora": "anna"}
    async with serve_front(pool) as served, serve_gateway(served.address) as gateway:
        stored = (await gateway.http.post("/v1/audio/voices", data=data, files=files)).json()
        (listed,) = (await gateway.http.get("/v1/audio/voices")).json()["voices"]
        assert stored["lora"] == listed["lora"] == "anna"
        for fields, expected in (({}, "anna"), ({"lora": ""}, ""), ({"lora": None}, "anna")):
            assert (await gateway.speak(voice="Ada", **fields)).status_code == 200
            assert pool.spoken_with[-1].removesuffix("1") == expected
        unknown = await gateway.http.post("/v1/audio/voices", data=data | {"lora": "nobody"}, files=files)
        assert unknown.status_code == 404 and "no LoRA adapter 'nobody'" in unknown.json()["error"]["message"]


async def test_a_recording_with_its_words_becomes_a_hifi_voice(named):
    files = {"audio_sample": ("a.wav", recording(6), "audio/wav")}
    data = {"name": "Eve", "consent": "yes", "ref_text": "One two."}
    stored = (await named.http.post("/v1/audio/voices", data=data, files=files)).json()
    assert stored["kind"] == "hifi"
    await spoken_by(named, "Eve")
    assert named.served.pool.requests[-1].conditioning.prompt.text == "One two. "


@pytest.mark.parametrize(
    ("data", "audio", "param", "words"),
    [
        ({"name": "Ada"}, b"RIFF", "consent", "required"),
        ({"name": "Ada", "consent": "no"}, b"RIFF", "consent", "says no"),
        ({"name": "Ada", "consent": "yes"}, None, "audio_sample", "required"),
        ({"name": "Ada", "consent": "yes"}, b"not audio", None, ""),
        ({"name": "alloy", "consent": "yes"}, b"RIFF", "name", "stands for another voice"),
        ({"name": "Ada", "consent": "yes", "prompt": "old"}, b"RIFF", "prompt", "unknown"),
        ({"name": "Ada", "consent": "yes", "type": "prompt"}, b"RIFF", "type", "recordings only"),
        ({"name": "ann", "consent": "yes"}, recording(7), None, "preset"),
    ],
)
async def test_a_wrong_form_is_refused_and_nothing_is_stored(named, data, audio, param, words):
    # a file is needed to make the body multipart
    files = {"audio_sample": ("a.wav", audio)} if audio is not None else {"x": (None, "")}
    response = await named.http.post("/v1/audio/voices", data=data, files=files)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert words in error["message"] or audio is None
    assert error["param"] == param or param is None or audio is None
    assert len((await named.http.get("/v1/audio/voices")).json()["voices"]) == 2


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("multipart/form-data", b"--x\r\n\r\n", 400),
        ("multipart/form-data; boundary=x", b"nonsense", 400),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\n', 400),
        ("application/json", b"{}", 415),
    ],
)
async def test_a_broken_form_is_refused(named, kind, body, status):
    response = await named.http.post("/v1/audio/voices", content=body, headers={"content-type": kind})
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_the_model_has_its_own_name_and_those_of_openai(gateway, served):
    own = served.pool.info.name
    listed = (await gateway.http.get("/v1/models")).json()
    assert listed["object"] == "list"
    names = [model["id"] for model in listed["data"]]
    assert names[0] == own
    assert {"tts-1", "tts-1-hd", "gpt-4o-mini-tts"} <= set(names)
    for name in names:
        assert (await gateway.http.get(f"/v1/models/{name}")).json()["id"] == name
        assert (await gateway.speak(model=name)).status_code == 200
    assert (await gateway.http.get("/v1/models/whisper-1")).status_code == 404
    models = (await gateway.http.get("/v1/audio/models")).json()["models"]
    assert [model["id"] for model in models] == names


async def test_a_model_of_prompts_stores_recordings_with_their_words_as_prompts(serve_front, serve_gateway, fake):
    pool = fake()
    lacks = replace(pool.info.abilities, reference="{model} takes no reference", hifi="{model} takes no hifi voice")
    pool.info = replace(pool.info, abilities=lacks)
    files = {"audio_sample": ("a.wav", recording(1), "audio/wav")}
    form = {"name": "Ada", "consent": "2026-11-01"}
    async with serve_front(pool) as served, serve_gateway(served.address) as gateway:
        stored = await gateway.http.post("/v1/audio/voices", data=form | {"ref_text": "Hi there."}, files=files)
        assert (stored.status_code, stored.json()["kind"]) == (200, "prompt")
        refused = (await gateway.http.post("/v1/audio/voices", data=form, files=files)).json()["error"]
    assert (refused["param"], "fake needs the words of the recording" in refused["message"]) == ("ref_text", True)
