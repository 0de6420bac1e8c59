"""Voices on a real server, or on several servers behind one address."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest
from support.clients.short_speech import SHORT
from support.servers.uploads import upload

from voxcpm_client import Audition, Client, NotFound, Prompt
from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.v1 import tts_pb2 as pb

CONNECTIONS = 6  # enough for a balancer to reach each of a few servers


def test_voices_are_created_used_and_deleted(client, recording, same_audio):
    reference = client.add_reference(recording, name="tone", preview=True)
    assert reference.preview.seconds == pytest.approx(1.0, abs=0.2)
    prompt = client.add_prompt(recording, "A tone.")
    hifi = client.add_hifi(recording, "A tone.")
    assert {voice.id for voice in client.voices()} >= {reference.id, prompt.id, hifi.id}
    stored = client.say("Hello.", voice=reference.id, **SHORT)
    inline = client.say("Hello.", reference=recording, **SHORT)
    encoded = client.say("Hello.", reference=client.encode_latents(recording, role="reference"), **SHORT)
    same_audio(stored.samples, inline.samples)
    same_audio(stored.samples, encoded.samples)
    both = client.say("Hello.", prompt=Prompt(recording, "A tone."), reference=recording, **SHORT)
    same_audio(client.say("Hello.", voice=hifi.id, **SHORT).samples, both.samples)
    same_audio(client.say("Hello.", voice=[prompt.id, reference.id], **SHORT).samples, both.samples)
    client.delete_voice(hifi.id, cascade=True)
    with pytest.raises(NotFound) as raised:
        client.say("Hello.", voice=hifi.id)
    assert raised.value.request_id


def test_all_servers_see_the_creation_and_the_deletion_of_a_voice_at_once(target, recording, same_audio):
    for _ in range(2):
        with Client(target, timeout=300) as maker:
            voice = maker.add_reference(recording)
            assert not voice.reused
        speeches = []
        for _ in range(CONNECTIONS):
            with Client(target, timeout=300) as other:
                speeches.append(other.say("Hello.", voice=voice.id, **SHORT).samples)
                assert other.get_voice(voice.id).id == voice.id
                assert other.add_reference(recording).reused
            same_audio(speeches[-1], speeches[0])
        with Client(target, timeout=300) as deleter:
            deleter.delete_voice(voice.id)
        for _ in range(CONNECTIONS):
            with Client(target, timeout=300) as other:
                with pytest.raises(NotFound):
                    other.say("Hello.", voice=voice.id, **SHORT)
                with pytest.raises(NotFound):
                    other.get_voice(voice.id)


def test_previews_and_auditions_sound_as_the_stored_voice_does(client, recording, same_audio):
    settings: dict[str, Any] = {"max_steps": 4, "timesteps": 4}
    voice = client.add_reference(
        recording,
        preview=Audition("Hello.", seed=5, **settings),
        auditions=[Audition("Bye.", **settings), Audition("Hello.", seed=9, style="sad", **settings)],
    )
    expected = [
        client.say("Hello.", voice=voice.id, seed=5, **settings),
        client.say("Bye.", voice=voice.id, seed=5, **settings),
        client.say("Hello.", voice=voice.id, seed=9, style="sad", **settings),
    ]
    assert voice.preview is not None
    for heard, said in zip((voice.preview, *voice.auditions), expected, strict=True):
        same_audio(heard.samples, said.samples)
    client.delete_voice(voice.id)


def test_voices_are_listed_by_label_in_pages(client, stub, recording):
    run = uuid.uuid4().hex
    made = [client.add_prompt(recording, f"Number {number}.", labels={"run": run}).id for number in range(5)]
    seen, token = [], ""
    for _ in range(10):
        request = pb.ListVoicesRequest(labels={"run": run}, page_size=2, page_token=token)
        page = stub.ListVoices(request, timeout=300)
        seen += [handle.id for handle in page.handles]
        if not (token := page.next_page_token):
            break
    assert seen == made[::-1]
    for id in made:
        client.delete_voice(id)
    client.delete_voice(made[0], missing_ok=True)
    assert client.voices(labels={"run": run}) == []


def test_latents_condition_like_their_recording(client, info, recording, same_audio):
    latents = client.encode_latents(recording, role="prompt")
    assert latents.data.shape[1] == info.feat_dim
    assert latents.model_fingerprint == info.model_fingerprint
    speech = client.say("Hello.", prompt=Prompt(latents, "A tone."), **SHORT)
    same_audio(speech.samples, client.say("Hello.", prompt=Prompt(recording, "A tone."), **SHORT).samples)


@pytest.mark.parametrize("kind", ["prompt", "reference"])
def test_an_upload_of_many_parts_is_complete(stub, info, recording, kind):
    kinds = {
        "prompt": (stub.AddPrompt, pb.AddPromptRequest, pb.AddPromptConfig(transcript="A tone.")),
        "reference": (stub.AddReference, pb.AddReferenceRequest, pb.AddReferenceConfig()),
    }
    method, request, config = kinds[kind]
    chunks = list(method(upload(request, config, (0, recording), size=500), timeout=300))
    assert chunks[0].handle.id
    assert chunks[-1].HasField("summary")
    assert [chunk.sequence for chunk in chunks] == list(range(len(chunks)))
    stub.DeleteVoice(pb.DeleteVoiceRequest(id=chunks[0].handle.id), timeout=300)


def test_large_messages_pass(client, info):
    """The inline audio is near the limit of a message, which is more than proxies buffer."""
    seconds = min(57.0, 0.95 * info.limits.max_reference_seconds)
    noise = np.random.default_rng().uniform(-0.3, 0.3, int(48000 * seconds)).astype(np.float32)
    recording = wav_bytes(noise, 48000)
    assert 5_000_000 < len(recording) < info.limits.max_inline_audio_bytes
    assert client.say("Hello.", reference=recording, **SHORT).summary.total_samples
    voice = client.add_reference(recording)
    assert voice.reference_seconds == pytest.approx(seconds, abs=0.1)
    client.delete_voice(voice.id)


def test_presets_are_used_by_name_and_other_names_are_not_found(client, info):
    listed = {voice.name for voice in client.voices() if voice.expires is None}
    assert listed == set(info.presets)
    for name in info.presets:
        assert client.say("Hello.", voice=name, **SHORT).summary.total_samples
    with pytest.raises(NotFound, match="there is no voice 'missing'"):
        client.say("Hello.", voice="missing")
