import numpy as np
import pytest
from support.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, AudioFormat, Encoding, InvalidArgument, Latents, NotFound, Prompt
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


async def test_a_preview_comes_with_the_voice(client, server):
    voice = await client.add_reference(RECORDING, preview=True)
    assert voice.id.startswith("ref_")
    np.testing.assert_array_equal(voice.preview.samples, server.samples("preview"))
    assert (await client.add_reference(RECORDING)).preview is None


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
    conditioning = server.calls[-1].config.conditioning
    sent = conditioning.inline_reference.latents
    assert (sent.feat_dim, sent.model_fingerprint) == (16, "fake-1")
    np.testing.assert_array_equal(np.frombuffer(sent.data, "<f4").reshape(4, 16), latents.data)
    assert conditioning.inline_prompt.transcript == "said"
    with pytest.raises(InvalidArgument, match="shape"):
        client.speak("a", reference=Latents(data=np.zeros(5, np.float32), model_fingerprint=""))


async def test_any_other_name_is_a_preset(client, server):
    await client.say("a", voice="anna", style="calm")  # the server decides if they can be combined
    assert server.calls[-1].config.conditioning == pb.Conditioning(preset="anna")
    assert (await client.model_info()).presets == ("anna", "otto")


@pytest.mark.parametrize(
    ("voice", "field"),
    [("prm_1", "prompt_id"), ("ref_1", "reference_id"), ("hifi_1", "hifi_id"), (["ref_1", "prm_2"], "reference_id")],
)
async def test_the_prefix_of_an_id_decides_its_field(client, server, voice, field):
    await client.say("a", voice=voice)
    conditioning = server.calls[-1].config.conditioning
    assert getattr(conditioning, field) == (voice if isinstance(voice, str) else voice[0])


async def test_recordings_can_be_sent_with_the_call(client, server, tmp_path):
    path = tmp_path / "voice.wav"
    path.write_bytes(b"prompt bytes")
    await client.say("a", prompt=Prompt(path, "said"), reference=b"reference bytes")
    conditioning = server.calls[-1].config.conditioning
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
        format="wav",
        sample_rate=8000,
        segmentation="manual",
        max_segment_chars=50,
        continuity="independent",
        max_lead=1.5,
        max_queue_time=2.5,
    )
    config = server.calls[-1].config
    sampling = config.turn.sampling
    assert config.turn.style == "calm"
    assert sampling.HasField("seed") and sampling.HasField("cfg_value") and sampling.HasField("min_steps")
    assert (sampling.inference_timesteps, sampling.temperature, sampling.max_steps) == (4, 0.5, 9)
    assert (config.output.encoding, config.output.sample_rate_hz) == (pb.AUDIO_ENCODING_WAV, 8000)
    assert (config.segmentation.mode, config.segmentation.continuity, config.segmentation.max_chars) == (
        pb.SEGMENTATION_MODE_MANUAL,
        pb.CONTINUITY_MODE_INDEPENDENT,
        50,
    )
    assert config.pacing.max_lead.ToMilliseconds() == 1500
    assert config.max_queue_time.ToMilliseconds() == 2500
    await client.say("a")
    config = server.calls[-1].config
    assert config.request_id and not config.turn.sampling.ListFields() and not config.segmentation.ListFields()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"voice": [""]}, "a voice is empty"),
        ({"voice": ["anna", "ref_1"]}, "use it alone"),
        ({"voice": "anna", "reference": b"x"}, "use it alone"),
        ({"voice": ["ref_1", "ref_2"]}, "two voices"),
        ({"voice": ["hifi_1", "ref_2"]}, "hifi"),
        ({"voice": "prm_1", "prompt": Prompt(b"x", "y")}, "two voices give a prompt"),
        ({"voice": "prm_1", "style": "calm"}, "read it aloud"),
        ({"voice": "hifi_1", "style": "calm"}, "read it aloud"),
        ({"format": "mp3"}, "pcm_s16le"),
        ({"segmentation": "never"}, "sentence, manual"),
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


async def test_model_and_health(client):
    info = await client.model_info()
    assert (info.output_sample_rate, info.encodings, info.inference_timesteps) == (16000, ("pcm_s16le",), (4, 10))
    assert info.limits.max_prompt_seconds == 60.5
    assert await client.health()
