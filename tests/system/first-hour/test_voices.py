"""Point 2: voices have names; poor recordings and scripts that the model does not know are not passed over."""

from __future__ import annotations

import json
import re
import wave
from pathlib import Path

import numpy as np
import pytest

RATE = 24000  # of the bundled voice
METHOD = "voxcpm_grpc.v1.VoxCPMService"
TEXT = "The children played in the snow until dark."
BY_NAME = """
from voxcpm_client import Client

with Client("{target}") as client:
    print(len(client.say("Hello.", voice="{name}").samples))
"""


def record(path: Path, samples: np.ndarray) -> Path:
    """Write float samples as a WAV file."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return path


@pytest.fixture(scope="module")
def spoken(client, server) -> np.ndarray:
    """Speech at RATE: a good recording."""
    client.shell(f'voxcpm-grpc say "{TEXT} {TEXT}" --voice miles --seed 3 --out spoken.wav')
    with wave.open(str(client.checkout / "spoken.wav")) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768


@pytest.fixture(scope="module")
def store(client, server, spoken):
    """Stores a recording under a name. Returns its id."""

    def clone(name: str, samples: np.ndarray = spoken) -> str:
        path = record(client.checkout / "recording.wav", samples)
        done = client.run("voxcpm-grpc", "clone", path, "--reference-only", "--name", name)
        assert done.code == 0, done.errors
        return done.output.strip()

    return clone


def call(client, server: str, method: str, *messages: dict) -> str:
    """A call with grpcurl, a client that knows nothing of names."""
    text = " ".join(json.dumps(message) for message in messages)
    done = client.run("grpcurl", "-plaintext", "-d", text, server, f"{METHOD}/{method}")
    return done.output + done.errors


@pytest.fixture(scope="module")
def ann(store) -> str:
    return store("Ann")


@pytest.mark.parametrize("voice", ["Ann", "miles", "id"])
def test_every_client_speaks_with_a_name_or_an_id(client, server, ann, voice):
    name = ann if voice == "id" else voice
    done = client.run("voxcpm-grpc", "say", "Hello.", "--voice", name, "--out", "named.wav")
    assert done.code == 0, done.errors
    done = client.run("python", "-c", BY_NAME.format(target=server, name=name))
    assert done.code == 0, done.errors
    config = {"config": {"conditioning": {"voice": name}}}
    assert '"audio"' in call(client, server, "Generate", config, {"text": "Hello."})


def test_a_name_of_another_recording_is_refused_with_its_id(client, server, store, spoken):
    id = store("Twin")
    path = record(client.checkout / "other.wav", spoken[: len(spoken) * 3 // 4])
    done = client.run("voxcpm-grpc", "clone", path, "--reference-only", "--name", "Twin")
    assert done.code == 1
    assert re.findall(r"ref_\w+", done.errors) == [id]
    assert client.run("voxcpm-grpc", "say", "Hello.", "--voice", "Twin", "--out", "twin.wav").code == 0


def test_update_voice_renames(client, server, store, spoken):
    voice = store("Grace", spoken[: len(spoken) * 2 // 3])
    call(client, server, "UpdateVoice", {"id": voice, "display_name": "Grace Hopper"})
    assert "Grace Hopper" in client.run("voxcpm-grpc", "voices", "show", voice).output
    assert client.run("voxcpm-grpc", "say", "Hi.", "--voice", "Grace Hopper", "--out", "renamed.wav").code == 0
    assert client.run("voxcpm-grpc", "say", "Hi.", "--voice", "Grace", "--out", "renamed.wav").code == 1


def test_presets_are_shown_like_voices(client, server):
    done = client.run("voxcpm-grpc", "voices", "show", "miles")
    assert done.code == 0, done.errors
    assert "miles" in done.output


def clone(client, samples: np.ndarray):
    path = record(client.checkout / "poor.wav", samples)
    return client.run("voxcpm-grpc", "clone", path, "--reference-only")


def test_a_silent_recording_is_refused_with_its_level(client, server):
    done = clone(client, np.zeros(3 * RATE))
    assert done.code == 1
    assert re.search(r"silent.* -?\d+", done.errors)


@pytest.mark.parametrize(
    ("flaw", "figure"),
    [("short", r"\d\.\d+ s"), ("clipped", r"\d+(\.\d+)? ?%"), ("noise", r"\d+(\.\d+)? dB")],
)
def test_a_poor_recording_is_refused_or_warned_about_with_the_figure(client, server, spoken, flaw, figure):
    noise = np.random.default_rng(1).normal(0, 0.1, len(spoken))
    samples = {"short": spoken[RATE // 2 : RATE], "clipped": spoken * 20, "noise": noise}[flaw]
    lines = clone(client, samples).errors.splitlines()
    assert [line for line in lines if flaw in line.lower() and re.search(figure, line)], lines


@pytest.mark.parametrize("text", ["Привет, как дела?", "今天天气很好。"])
def test_a_script_that_the_model_does_not_know_is_spoken_with_a_warning(client, server, text):
    done = client.run("voxcpm-grpc", "say", text, "--voice", "miles", "--out", "foreign.wav")
    assert done.code == 0, done.errors
    assert "warning" in done.errors.lower()
    config = {"config": {"conditioning": {"preset": "miles"}}}
    assert '"warnings"' in call(client, server, "Generate", config, {"text": text})


def test_english_gets_no_warning(client, server):
    done = client.run("voxcpm-grpc", "say", TEXT, "--voice", "miles", "--out", "english.wav")
    assert "warning" not in done.errors.lower()
