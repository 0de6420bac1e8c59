from typing import Any, cast

import numpy as np
import pytest
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, AudioFormat, Audition, Encoding, InvalidArgument, Latents, NotFound, Prompt
from voxcpm_client.messages.responses import model_info
from voxcpm_grpc.v1 import tts_pb2 as pb

RECORDING = bytes(range(256)) * 700  # 179,200 bytes: three parts


@pytest.fixture
async def client(server):
    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client:
        yield client


async def test_a_prompt_is_uploaded_in_parts_and_committed(client, server, tmp_path):
    path = tmp_path / "anna.wav"
    path.write_bytes(RECORDING)
    voice = await client.add_prompt(path, "What Anna says.", name="anna", labels={"of": "me"}, ttl=3600)
    assert server.recordings[voice.id] == RECORDING
    config, *parts, commit = server.calls[-1].received
    assert config.config.preview.mode == pb.PREVIEW_MODE_NONE
    assert [part.audio.offset_bytes for part in parts] == [0, 65536, 131072]
    assert commit.commit.digests[0].total_bytes == len(RECORDING)
    assert len(commit.commit.digests[0].sha256) == 32  # the server compared them
    assert (voice.kind, voice.name, voice.labels, voice.transcript) == (
        "prompt",
        "anna",
        {"of": "me"},
        "What Anna says.",
    )
    assert voice.created is not None and voice.expires is not None
    assert (voice.expires - voice.created).total_seconds() == 3600
    assert not voice.reused
    assert (await client.add_prompt(str(path), "What Anna says.")).reused


async def test_a_voice_has_an_adapter(client, server):
    voice = await client.add_reference(RECORDING, lora="anna", auditions=[Audition("One."), Audition("Two.", lora="")])
    assert voice.lora == (await client.get_voice(voice.id)).lora == "anna"
    config, *_, one, two = server.calls[-2].received
    assert config.config.options.lora == "anna"
    assert [message.audition.turn.HasField("lora") for message in (one, two)] == [False, True]
    await client.update_voice(voice.id, name="Ada")
    assert not server.calls[-1].received[0].HasField("lora")
    assert (await client.update_voice(voice.id, lora="bert")).lora == "bert"
    assert (await client.update_voice(voice.id, lora="")).lora == ""


async def test_a_preview_comes_with_the_voice(client, server):
    voice = await client.add_reference(RECORDING, preview=True)
    assert voice.id.startswith("ref_")
    np.testing.assert_array_equal(voice.preview.samples, server.samples("preview"))
    assert (await client.add_reference(RECORDING)).preview is None


async def test_a_preview_and_auditions_are_spoken_with_the_voice(client, server):
    voice = await client.add_reference(
        RECORDING,
        preview=Audition("Hello.", style="calm", seed=7, timesteps=4),
        auditions=["One.", Audition("Two.", temperature=0.5, seed=8)],
    )
    np.testing.assert_array_equal(voice.preview.samples, server.samples("Hello."))
    for speech, text in zip(voice.auditions, ("One.", "Two."), strict=True):
        np.testing.assert_array_equal(speech.samples, server.samples(text))
    config, *_, one, two = server.calls[-1].received
    preview = config.config.preview
    assert (preview.mode, preview.text, preview.auditions) == (pb.PREVIEW_MODE_SYNTHESIS, "Hello.", True)
    sampling = pb.Sampling(seed=7, inference_timesteps=4)
    assert preview.turn == pb.TurnConfig(style="calm", sampling=sampling)
    assert one.audition == pb.Audition(text="One.", turn=pb.TurnConfig(sampling=pb.Sampling()))
    assert two.audition.turn.sampling == pb.Sampling(temperature=0.5, seed=8)
    assert [speech.header.seed for speech in (voice.preview, *voice.auditions)] == [7, 7, 8]


async def test_a_preview_without_a_text_and_auditions_without_a_preview(client, server):
    voice = await client.add_prompt(RECORDING, "What Anna says.", preview=Audition())
    np.testing.assert_array_equal(voice.preview.samples, server.samples("the default"))
    assert voice.auditions == ()
    voice = await client.add_hifi(RECORDING, "What Anna says.", auditions=("One.",))
    assert voice.preview is None
    np.testing.assert_array_equal(voice.auditions[0].samples, server.samples("One."))


async def test_an_audition_that_fails_raises_and_the_voice_is_there(client, server):
    with pytest.raises(InvalidArgument, match="no questions"):
        await client.add_reference(RECORDING, auditions=["Good.", "Bad?"])
    assert (await client.add_reference(RECORDING)).reused


@pytest.mark.parametrize(
    ("auditions", "error", "message"),
    [
        ("one text", TypeError, "auditions is str"),
        (["good", 7], TypeError, "auditions has a int"),
        (["good", ""], InvalidArgument, "an audition has no text"),
        ([Audition("x", seed=-1)], InvalidArgument, "seed=-1"),
    ],
)
async def test_impossible_auditions_are_refused_before_anything_is_sent(client, server, auditions, error, message):
    with pytest.raises(error, match=message):
        await client.add_reference(RECORDING, auditions=auditions)
    with pytest.raises(InvalidArgument, match="seed=-1"):
        await client.add_reference(RECORDING, preview=Audition("x", seed=-1))
    assert not server.calls


async def test_raw_samples_are_declared(client, server):
    await client.add_reference(RECORDING, source=AudioFormat(Encoding.PCM_F32LE, 16000))
    source = server.calls[-1].received[0].config.source
    assert (source.encoding, source.sample_rate_hz) == (pb.AUDIO_ENCODING_PCM_F32LE, 16000)


async def test_a_hifi_voice_of_one_recording(client, server):
    voice = await client.add_hifi(RECORDING, "What is said.")
    config = server.calls[-1].received[0].config
    assert config.WhichOneof("reference") == "same_as_prompt"
    assert config.uploaded_prompt.transcript == "What is said."
    assert server.recordings[voice.id] == RECORDING


async def test_a_hifi_voice_of_two_recordings(client, server):
    voice = await client.add_hifi(b"prompt", "What is said.", reference=b"reference")
    assert server.recordings[voice.id] == b"promptreference"
    roles = [message.audio.role for message in server.calls[-1].received if message.HasField("audio")]
    assert roles == [pb.AUDIO_ROLE_PROMPT, pb.AUDIO_ROLE_REFERENCE]


async def test_a_hifi_voice_of_stored_voices(client, server):
    await client.add_hifi("prm_1", reference="ref_2")
    config = server.calls[-1].received[0].config
    assert (config.prompt_id, config.reference_id) == ("prm_1", "ref_2")
    with pytest.raises(InvalidArgument, match="needs a reference"):
        await client.add_hifi("prm_1")


async def test_voices_are_listed_over_all_pages_shown_and_deleted(client, server):
    ids = {(await client.add_reference(bytes([number]))).id for number in range(3)}
    prompt = await client.add_prompt(b"p", "text", labels={"team": "x"})
    assert {voice.id for voice in await client.voices()} == ids | {prompt.id}
    assert {voice.id for voice in await client.voices(kind="reference")} == ids
    assert [voice.id for voice in await client.voices(labels={"team": "x"})] == [prompt.id]
    assert (await client.get_voice(prompt.id)).transcript == "text"
    await client.delete_voice(prompt.id)
    with pytest.raises(NotFound) as raised:
        await client.get_voice(prompt.id)
    assert (raised.value.field, raised.value.request_id) == ("id", "r-7")
    with pytest.raises(NotFound):
        await client.delete_voice(prompt.id)
    await client.delete_voice(prompt.id, missing_ok=True)


async def test_latents_are_received_and_sent(client, server):
    latents = await client.encode_latents(RECORDING, role="reference")
    assert latents.data.shape == (4, 16)
    assert server.calls[-1].received[0].config.role == pb.AUDIO_ROLE_REFERENCE
    await client.say("a", reference=latents, prompt=Prompt(latents, "said"))
    conditioning = server.streams[-1].config.conditioning
    sent = conditioning.inline_reference.latents
    assert (sent.feat_dim, sent.model_fingerprint) == (16, "fake-1")
    np.testing.assert_array_equal(np.frombuffer(sent.data, "<f4").reshape(4, 16), latents.data)
    assert conditioning.inline_prompt.transcript == "said"
    with pytest.raises(InvalidArgument, match="shape"):
        client.speak("a", reference=Latents(data=np.zeros(5, np.float32), model_fingerprint=""))


@pytest.mark.parametrize("voice", ["anna", "prm_1", "ref_1", "hifi_1", ["Ada Lovelace"], ("ref_1",)])
async def test_the_server_finds_the_voice(client, server, voice):
    await client.say("a", voice=voice, style="calm")  # the server decides if they can be combined
    expected = pb.Conditioning(voice=voice if isinstance(voice, str) else voice[0])
    assert server.streams[-1].config.conditioning == expected
    assert (await client.model_info()).presets == ("anna", "otto")


@pytest.mark.parametrize(
    ("voices", "prompt", "reference"),
    [
        (["prm_1", "ref_2"], "prm_1", "ref_2"),
        (["ref_2", "prm_1"], "prm_1", "ref_2"),
        (["Ada", "Bea"], "Ada", "Bea"),
        (["ref_2", "Ada"], "Ada", "ref_2"),
        (["Bea", "prm_1"], "prm_1", "Bea"),
    ],
)
async def test_two_voices_are_a_prompt_and_a_reference(client, server, voices, prompt, reference):
    await client.say("a", voice=voices)
    assert server.streams[-1].config.conditioning == pb.Conditioning(prompt_id=prompt, reference_id=reference)


async def test_a_voice_goes_with_a_recording_of_the_other_role(client, server):
    await client.say("a", voice="Ada", reference=b"recording")
    conditioning = server.streams[-1].config.conditioning
    assert (conditioning.prompt_id, conditioning.WhichOneof("reference")) == ("Ada", "inline_reference")
    await client.say("a", voice="Ada", prompt=Prompt(b"recording", "said"))
    conditioning = server.streams[-1].config.conditioning
    assert (conditioning.reference_id, conditioning.WhichOneof("prompt")) == ("Ada", "inline_prompt")


async def test_a_voice_is_updated_by_its_name(client, server):
    voice = await client.add_reference(RECORDING, name="Ada")
    renamed = await client.update_voice("Ada", name="Bea", labels={"team": "x"}, ttl=60)
    assert (renamed.id, renamed.name) == (voice.id, "Bea")
    (request,) = server.calls[-1].received
    assert (dict(request.labels.labels), request.ttl.seconds) == ({"team": "x"}, 60)
    await client.update_voice("Bea", labels={})
    (request,) = server.calls[-1].received
    assert request.HasField("labels") and not request.HasField("display_name") and not request.HasField("ttl")
    assert (await client.get_voice("Bea")).id == voice.id
    await client.delete_voice("Bea")
    with pytest.raises(NotFound):
        await client.get_voice("Bea")


async def test_warnings_are_collected_and_logged(client, server, caplog):
    server.warnings = [
        pb.Warning(kind=pb.WARNING_KIND_SHORT_RECORDING, message="it is short"),
        pb.Warning(kind=pb.WARNING_KIND_LANGUAGE, message="it is \x1b[1mforeign"),
        pb.Warning(kind=cast(Any, 99), message="from tomorrow"),
    ]
    voice = await client.add_reference(RECORDING)
    speech = await client.say("a")
    assert [warning.kind for warning in speech.warnings] == ["short_recording", "language", "99"]
    assert speech.warnings == voice.warnings
    assert speech.warnings[0].message == "it is short"
    logged = [record.getMessage() for record in caplog.records if record.name == "voxcpm_client"]
    assert len(logged) == 2 * 3
    assert f"it is short (request {speech.header.request_id})" in logged
    assert not any("\x1b" in line for line in logged)
    server.warnings = []
    assert (await client.say("a")).warnings == (await client.get_voice(voice.id)).warnings == ()


async def test_recordings_can_be_sent_with_the_call(client, server, tmp_path):
    path = tmp_path / "voice.wav"
    path.write_bytes(b"prompt bytes")
    await client.say("a", prompt=Prompt(path, "said"), reference=b"reference bytes")
    conditioning = server.streams[-1].config.conditioning
    assert conditioning.inline_prompt.audio.data == b"prompt bytes"
    assert conditioning.inline_reference.audio.data == b"reference bytes"
    with pytest.raises(FileNotFoundError):
        client.speak("a", reference=tmp_path / "none.wav")


async def test_every_option_is_sent_in_its_field(client, server):
    await client.say(
        "a",
        style="calm",
        seed=0,
        cfg_value=0.0,
        timesteps=4,
        temperature=0.5,
        min_steps=0,
        max_steps=9,
        speed=0.75,
        volume_gain_db=0.0,
        format="wav",
        sample_rate=8000,
        segmentation="manual",
        max_segment_chars=50,
        continuity="independent",
        max_lead=1.5,
        max_queue_time=2.5,
        priority="batch",
    )
    config = server.calls[-1].config
    sampling = config.turn.sampling
    assert config.turn.style == "calm"
    assert sampling.HasField("seed") and sampling.HasField("cfg_value") and sampling.HasField("min_steps")
    assert (sampling.inference_timesteps, sampling.temperature, sampling.max_steps) == (4, 0.5, 9)
    assert config.turn.speed == 0.75 and config.turn.HasField("volume_gain_db")
    assert (config.output.encoding, config.output.sample_rate_hz) == (pb.AUDIO_ENCODING_WAV, 8000)
    assert (config.segmentation.mode, config.segmentation.continuity, config.segmentation.max_chars) == (
        pb.SEGMENTATION_MODE_MANUAL,
        pb.CONTINUITY_MODE_INDEPENDENT,
        50,
    )
    assert config.pacing.max_lead.ToMilliseconds() == 1500
    assert config.max_queue_time.ToMilliseconds() == 2500
    assert config.priority == pb.PRIORITY_BATCH
    await client.say("a", segmentation="tokens")
    assert server.calls[-1].config.segmentation.mode == pb.SEGMENTATION_MODE_TOKENS
    await client.say("a")
    config = server.calls[-1].config
    assert config.request_id and not config.turn.sampling.ListFields() and not config.segmentation.ListFields()


CODES: dict[str, Any] = {"top_k": 7, "top_p": 0.5, "repetition_penalty": 1.25}
CODES |= {"code_temperature": 0.0, "code_top_k": 0, "code_top_p": 0.75}


async def test_the_options_of_a_model_of_codes_are_sent_in_their_fields(client, server):
    await client.say("a", speech_language="de", language="en", **CODES)
    config = server.calls[-1].config
    assert (config.turn.language, config.segmentation.language) == ("de", "en")
    assert config.turn.sampling == pb.Sampling(**CODES) and config.turn.sampling.HasField("code_top_k")
    async with client.session() as session:
        await session.set_turn(speech_language="fr", top_k=3)
        await session.send_text("Un.")
        await session.finish()
        assert [chunk async for chunk in session]
    turn = server.streams[-1].received[1].turn
    assert turn == pb.TurnConfig(language="fr", sampling=pb.Sampling(top_k=3))
    await client.add_reference(RECORDING, auditions=[Audition("Hello.", speech_language="de", **CODES)])
    turn = server.calls[-1].received[-1].audition.turn
    assert turn == pb.TurnConfig(language="de", sampling=pb.Sampling(**CODES))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"voice": [""]}, "a voice is empty"),
        ({"top_k": -1}, "top_k=-1"),
        ({"top_k": 1.5}, "top_k=1.5"),
        ({"voice": ["a", "b", "c"]}, "3 voices are given; use one, or a prompt and a reference"),
        ({"voice": ["a", "b"], "reference": b"x"}, "3 voices are given"),
        ({"voice": "a", "no_voice": True}, "no_voice cannot be combined"),
        ({"prompt": Prompt(b"x", "y"), "style": "calm"}, "read it aloud"),
        ({"format": "aac"}, "pcm_s16le"),
        ({"segmentation": "never"}, "sentence, manual, tokens"),
        ({"continuity": "some"}, "carry"),
        ({"seed": -1}, "seed=-1"),
        ({"timesteps": 2.5}, "timesteps=2.5"),
        ({"sample_rate": -1}, "sample_rate is -1"),
        ({"max_segment_chars": 1.5}, "max_segment_chars is 1.5"),
        ({"max_lead": float("inf")}, "max_lead is inf"),
        ({"max_queue_time": 1e30}, "max_queue_time is 1e"),
    ],
)
async def test_impossible_options_are_refused_before_anything_is_sent(client, server, options, message):
    with pytest.raises(InvalidArgument, match=message):
        client.speak("a", **options)
    with pytest.raises(InvalidArgument, match="ttl is nan"):
        await client.add_reference(b"x", ttl=float("nan"))
    assert not server.calls


@pytest.mark.parametrize("voice", [7, ["ada", None], object()])
async def test_a_voice_that_is_no_string_is_a_type_error(client, server, voice):
    with pytest.raises(TypeError, match="voice"):
        client.speak("a", voice=voice)
    assert not server.calls


async def test_model_and_health(client):
    info = await client.model_info()
    assert (info.output_sample_rate, info.encodings, info.inference_timesteps) == (16000, ("pcm_s16le",), (4, 10))
    assert info.limits.max_prompt_seconds == 60.5
    assert await client.health()


async def test_a_model_says_which_voices_and_if_styles_it_takes(client, server):
    info = await client.model_info()
    assert (info.voice_kinds, info.styles) == (("prompt", "reference", "hifi"), True), "of a server that does not say"
    server.older_model = True
    info = await client.model_info()
    assert (info.voice_kinds, info.styles) == (("prompt",), False)


def test_the_description_of_a_model_of_codes_is_that_of_the_message():
    message = pb.GetModelInfoResponse(
        sampling_fields=["temperature", "top_k", "inference_timesteps", "seed"],
        default_sampling=pb.Sampling(temperature=0.9, top_k=50, min_steps=2, inference_timesteps=6),
        speech_languages=["en", "de"],
        text_streaming=True,
    )
    message.default_max_silence.FromMilliseconds(2000)
    info = model_info(message)
    assert info.voice_kinds == (), "a server that lists its fields says all"
    assert info.sampling_fields == ("temperature", "top_k", "timesteps", "seed")
    assert info.default_sampling == {"temperature": 0.9, "top_k": 50, "min_steps": 2, "timesteps": 6}
    assert (info.speech_languages, info.text_streaming, info.default_max_silence) == (("en", "de"), True, 2.0)
    message.voice_kinds.append(pb.VOICE_KIND_SPEAKER)
    assert model_info(message).voice_kinds == ("speaker",)
    assert model_info(pb.GetModelInfoResponse()).default_max_silence is None
