"""The client and the real server, on the embedded model."""

import json
import subprocess
import sys
import wave

import numpy as np
import pytest

from voxcpm_client import Client, InvalidArgument, NotFound, Prompt, Unavailable
from voxcpm_client.cli.demo import local_server
from voxcpm_grpc.audio import wav_bytes

SHORT = {"max_steps": 4, "timesteps": 4, "seed": 7}


@pytest.fixture(scope="module")
def client():
    with local_server("demo") as target, Client(target, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def recording() -> bytes:
    seconds = np.arange(16000) / 16000
    return wav_bytes((0.3 * np.sin(2 * np.pi * 220 * seconds)).astype(np.float32), 16000)


def test_speech_is_repeatable_and_complete(client):
    assert client.health()
    info = client.model_info()
    with client.speak(["Hello ", "there."], **SHORT) as stream:
        chunks = list(stream)
    assert stream.header.sample_rate == info.output_sample_rate
    assert stream.summary.total_samples == sum(chunk.sample_count for chunk in chunks) == 4 * info.samples_per_step
    assert [chunk.offset for chunk in chunks] == list(np.cumsum([0, *(c.sample_count for c in chunks)])[:-1])
    again = client.say("Hello there.", **SHORT)
    np.testing.assert_array_equal(again.samples, np.concatenate([chunk.samples for chunk in chunks]))
    assert not np.array_equal(client.say("Hello there.", **{**SHORT, "seed": 8}).samples, again.samples)


def test_voices_are_made_used_and_deleted(client, recording):
    reference = client.add_reference(recording, name="tone", preview=True)
    assert reference.preview.seconds == pytest.approx(1.0, abs=0.2)
    prompt = client.add_prompt(recording, "A tone.")
    hifi = client.add_hifi(recording, "A tone.")
    assert {voice.id for voice in client.voices()} >= {reference.id, prompt.id, hifi.id}
    stored = client.say("Hello.", voice=reference.id, **SHORT)
    inline = client.say("Hello.", reference=recording, **SHORT)
    encoded = client.say("Hello.", reference=client.encode_latents(recording, role="reference"), **SHORT)
    np.testing.assert_array_equal(stored.samples, inline.samples)
    np.testing.assert_array_equal(stored.samples, encoded.samples)
    both = client.say("Hello.", prompt=Prompt(recording, "A tone."), reference=recording, **SHORT)
    np.testing.assert_array_equal(client.say("Hello.", voice=hifi.id, **SHORT).samples, both.samples)
    np.testing.assert_array_equal(client.say("Hello.", voice=[prompt.id, reference.id], **SHORT).samples, both.samples)
    client.delete_voice(hifi.id, cascade=True)
    with pytest.raises(NotFound) as raised:
        client.say("Hello.", voice=hifi.id)
    assert raised.value.request_id


def test_a_conversation_can_be_interrupted(client):
    with client.session(timesteps=4, seed=1, segmentation="manual") as session:
        session.send_text("One long sentence that nobody will hear to its end, however long it may take.")
        session.flush()
        next(session)
        session.interrupt(tag="stop")
        assert any(chunk.interrupted and chunk.interrupted.tag == "stop" for chunk in session_until_answer(session))
        session.send_text("Two.")
        session.finish()
        assert sum(chunk.sample_count for chunk in session) > 0


def session_until_answer(session):
    for chunk in session:
        yield chunk
        if chunk.interrupted:
            return


def test_a_fault_names_its_field_and_its_request(client):
    with pytest.raises(InvalidArgument) as raised:
        client.say("Hello.", cfg_value=99.0, request_id="my-call")
    assert "cfg_value" in raised.value.field
    assert raised.value.request_id == "my-call"


def test_demo_speaks_and_leaves_no_server(tmp_path):
    command = [sys.executable, "-m", "voxcpm_client", "demo", "--out", "demo.wav", "--text", "Hi.", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    with wave.open(str(tmp_path / "demo.wav")) as file:
        assert file.getframerate() == report["header"]["sample_rate"]
        assert file.getnframes() == report["summary"]["total_samples"]
    target = done.stderr.split("listening on ")[1].split()[0]
    with Client(target, retries=0) as client, pytest.raises(Unavailable):
        client.health()
