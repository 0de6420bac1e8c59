"""A real server speaks with three kinds of Qwen3-TTS, as their engines do alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.engines.qwen3 import checkpoint, codes_of, engine, shared
from support.engines.tiny import finished, run
from support.servers.running import ADMIN, Server, serving

from voxcpm_client import Client, FailedPrecondition, NotFound
from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.audio.uploads import decode
from voxcpm_grpc.events import FinishReason
from voxcpm_grpc.request import Conditioning, Request, Role, Sampling, VoicePart, joined

TEXT, NEXT = "The quick brown fox.", "Hello world, and all."
WORDS = "Hello world is over the lazy dog. "
RATE = 24000  # of the models, so that no recording is resampled
RECORDING = wav_bytes((0.3 * np.sin(np.arange(2 * RATE) ** 1.3 / 90)).astype(np.float32), RATE)
STEPS = 6
PLAIN: dict[str, Any] = {"format": "pcm_f32le", "trim_leading_silence": 0, "segmentation": "manual", "seed": 5}
SHORT: dict[str, Any] = {"min_steps": STEPS, "max_steps": STEPS}
OPTIONS: dict[str, Any] = {"temperature": 0.5, "top_k": 7, "top_p": 0.75, "repetition_penalty": 1.5}
OPTIONS |= {"code_temperature": 0.25, "code_top_k": 3, "code_top_p": 0.5}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    names = ("custom17", "base17", "design")
    first, *others = (f"{name}={checkpoint(name)}" for name in names)
    flags = [flag for one in others for flag in ("--model", one)]
    flags += ["--admin.listen", "127.0.0.1:0", "--admin.lora-sources", str(tmp_path_factory.mktemp("adapters"))]
    with serving(tmp_path_factory.mktemp("voices"), *flags, "--devices", "cpu", model=first) as started:
        yield started
        assert not started.fault(), started.fault()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.address, timeout=300, retries=0) as connected:
        yield connected


def alone(variant: str, **fields: Any) -> tuple[np.ndarray, np.ndarray]:
    """Audio and codes of a request with seed 5, from an engine of this process."""
    sampling = Sampling(seed=5, **SHORT, **fields.pop("sampling", {}))
    eng = engine(variant)
    eng.add(Request(id="a", keep_speech=True, sampling=sampling, **{"text": TEXT, **fields}))
    outcome = run(eng)["a"]
    return outcome.waveform, codes_of(outcome)


def same(served: np.ndarray, expected: np.ndarray) -> bool:
    return served.shape == expected.shape and bool(np.abs(served - expected).max() < 2e-5)


def test_a_speaker_speaks_by_language_style_and_all_options(client):
    given = {"style": "Very calm.", **SHORT, **OPTIONS}
    served = client.say(TEXT, model="custom17", voice="Vivian", speech_language="zh-TW", **given, **PLAIN)
    assert served.header.voice == "vivian"
    speaker, fields = Conditioning(speaker="vivian"), {"style": "Very calm.", "sampling": OPTIONS}
    expected, _ = alone("custom17", language="zh", conditioning=speaker, **fields)
    assert same(served.samples, expected)
    other, _ = alone("custom17", conditioning=speaker, **fields)
    assert not same(served.samples, other), "the language matters"


def test_without_a_voice_the_first_speaker_speaks(client):
    served = client.say(TEXT, **SHORT, **PLAIN)  # with the default model
    expected, _ = alone("custom17", conditioning=Conditioning(speaker="aiden"))
    assert served.header.voice == "aiden" and same(served.samples, expected)


def part(role: Role, text: str = "") -> VoicePart:
    """The recording as the codec of this process encodes it."""
    waveform = decode(RECORDING, target_rate=RATE, max_seconds=60, max_bytes=len(RECORDING)).waveform
    arrays: dict[str, list[np.ndarray]] = {}
    for name, piece in shared("base17").codec.encode(waveform, role):
        arrays.setdefault(name, []).append(piece.numpy().copy())
    content = {name: np.concatenate(pieces) for name, pieces in arrays.items()}
    return VoicePart(content=content, tracks=tuple(name for name in content if name == "codes"), text=text)


def stored(client: Client, kind: str) -> tuple[str, Conditioning]:
    """The id of a voice of the recording, and its content."""
    prompt, reference = part(Role.PROMPT, WORDS), part(Role.REFERENCE)
    if kind == "prompt":
        return client.add_prompt(RECORDING, WORDS, model="base17").id, Conditioning(prompt=prompt)
    if kind == "reference":
        return client.add_reference(RECORDING, model="base17").id, Conditioning(reference=reference)
    both = Conditioning(prompt=prompt, reference=reference)
    return client.add_hifi(RECORDING, WORDS, model="base17").id, both


@pytest.mark.parametrize("kind", ["prompt", "reference", "hifi"])
def test_a_stored_recording_speaks_and_its_speech_goes_on(client, kind):
    """The second segment has the codes of the first one behind those of the recording."""
    id, voice = stored(client, kind)
    greedy: Any = {"temperature": 0.0, "code_temperature": 0.0}
    given: Any = {**PLAIN, "segmentation": "sentence", "min_steps": STEPS, "max_steps": 200, **greedy}
    with client.speak(f"{TEXT} {NEXT}", model="base17", voice=id, **given) as stream:
        chunks = list(stream)
    first, second = (np.concatenate([one.samples for one in chunks if one.segment == index]) for index in (0, 1))
    sampling = Sampling(seed=5, min_steps=STEPS, max_steps=200, **greedy)
    eng = engine("base17")
    eng.add(Request(id="a", text=TEXT, keep_speech=True, sampling=sampling, conditioning=voice))
    outcome = run(eng)["a"]
    assert same(first, outcome.waveform)
    end = finished(outcome)
    assert end.reason is FinishReason.STOP and end.speech is not None
    parts = [one for one in (voice.prompt, replace(end.speech, text=TEXT)) if one is not None]
    voice = replace(voice, prompt=joined(parts, "".join(one.text for one in parts)))
    eng.add(Request(id="b", text=NEXT, sampling=sampling, conditioning=voice, segment=1))
    assert same(second, run(eng)["b"].waveform)


def test_a_style_designs_a_voice(client):
    given: Any = {**PLAIN, **SHORT}
    calm, again = (client.say(TEXT, model="design", style="A calm old man.", **given) for _ in range(2))
    expected, _ = alone("design", style="A calm old man.")
    assert not calm.header.voice and same(calm.samples, expected) and np.array_equal(calm.samples, again.samples)
    drawn = client.say(TEXT, model="design", continuity="carry", **given)
    assert [warning.kind for warning in drawn.warnings] == ["continuity"]
    assert same(drawn.samples, alone("design")[0])


def test_what_a_variant_cannot_do_is_refused_with_the_one_that_can(client):
    with pytest.raises(
        FailedPrecondition, match=r"a reference needs Qwen3-TTS Base, and this server's model is custom17"
    ):
        client.add_reference(RECORDING, model="custom17")
    with pytest.raises(FailedPrecondition, match="speech without a voice needs Qwen3-TTS VoiceDesign or CustomVoice"):
        client.say(TEXT, model="base17")
    with pytest.raises(FailedPrecondition, match="has no inference_timesteps; its sampling options are temperature"):
        client.say(TEXT, model="design", timesteps=10)
    with pytest.raises(NotFound, match="did you mean 'vivian'"):
        client.say(TEXT, model="custom17", voice="vivien")
    with pytest.raises(FailedPrecondition, match="latents need VoxCPM"):
        client.encode_latents(RECORDING, role="prompt", model="base17")


def test_the_client_lists_the_speakers_and_what_a_model_takes(client):
    speakers = client.voices(kind="speaker", model="custom17")
    info = client.model_info("custom17")
    assert tuple(voice.name for voice in speakers) == info.presets and {voice.kind for voice in speakers} == {"speaker"}
    assert info.voice_kinds == ("speaker",) and info.styles and info.default_voice == "aiden"
    assert client.model_info("design").voice_kinds == ()
    assert client.model_info("base17").voice_kinds == ("prompt", "reference", "hifi")
    assert info.sampling_fields[:3] == ("temperature", "top_k", "top_p") and info.default_sampling["code_top_k"] == 50
    assert "de" in info.speech_languages and info.default_max_silence == 2.0 and info.text_streaming


def test_models_without_adapters_serve_where_adapters_may_be_registered_for_others(server):
    found = ADMIN.search(server.log)
    assert found
    with (
        Client(found[1], timeout=300, retries=0) as operator,
        pytest.raises(FailedPrecondition, match="LoRA adapters need VoxCPM") as refused,
    ):
        operator.register_lora("anna", "/anywhere", model="design")
    assert refused.value.reason == "NOT_SUPPORTED_BY_MODEL"
