"""Voices and speech cross the processes of engines as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.engines.qwen3 import cloned, load
from support.engines.qwen3_codec import checkpoint
from support.engines.tiny import run

import voxcpm_grpc
from voxcpm_grpc.embedded.async_model import Samples
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest
from voxcpm_grpc.events import AudioChunk, Finished
from voxcpm_grpc.request import Conditioning, Request, Role, Sampling
from voxcpm_grpc.settings.engine import EngineSettings

RATE = 24000
RECORDING = (0.3 * np.sin(np.arange(2 * RATE) ** 1.3 / 90)).astype(np.float32)
SHORT = Sampling(seed=3, min_steps=5, max_steps=5)


def test_an_engine_of_another_process_gives_the_same():
    settings = {"engine.max_slots": 2, "engine.reference_silence": 0.0}
    with voxcpm_grpc.load(checkpoint("base17"), devices=["cpu"], settings=settings) as model:
        voice = model.encode_voice(prompt=Samples(RECORDING, RATE), transcript="Hello world.")
        spoken = list(model.generate("The quick brown fox.", voice=voice, sampling=SHORT))
        german = list(model.generate("The quick brown fox.", voice=voice, sampling=SHORT, language="de"))
        assert not np.array_equal(np.concatenate(german), np.concatenate(spoken))
        with pytest.raises(InvalidRequest, match="language is 'sv'; it must be one of en, zh, de"):
            list(model.generate("Hello.", voice=voice, language="sv"))
        with pytest.raises(FailedPrecondition, match="a built-in voice needs Qwen3-TTS CustomVoice"):
            list(model.generate("Hello.", voice=Conditioning(speaker="vivian")))
        with pytest.raises(FailedPrecondition, match="speech without a voice needs Qwen3-TTS VoiceDesign"):
            list(model.generate("Hello."))
    prompt = voice.prompt
    assert prompt is not None and prompt.content["codes"].shape == (25, 16)  # of two seconds
    assert prompt.content["codes"].dtype == np.int16 and prompt.content["codes"].max() > 256
    assert prompt.content["speaker"].dtype == np.float32 and prompt.content["speaker"].shape == (64,)

    alone = load("base17", 2, reference_silence=0.0)
    made = [(name, part.numpy()) for name, part in alone.codec.encode(RECORDING, Role.PROMPT)]
    codes = np.concatenate([part for name, part in made if name == "codes"])
    assert np.array_equal(codes, prompt.content["codes"])
    eng = Engine(alone, EngineSettings(), torch.device("cpu"))
    eng.add(Request(id="a", text="The quick brown fox.", sampling=SHORT, conditioning=voice))
    assert np.array_equal(np.concatenate(spoken), run(eng)["a"].waveform)


def test_recordings_for_a_model_of_speakers_are_refused_before_they_are_encoded():
    with voxcpm_grpc.load(checkpoint("custom06"), devices=["cpu"], settings={"engine.max_slots": 1}) as model:
        with pytest.raises(FailedPrecondition, match="needs Qwen3-TTS Base"):
            model.encode_voice(prompt=Samples(RECORDING, RATE), transcript="Hello world.")
        with pytest.raises(FailedPrecondition, match="needs Qwen3-TTS Base"):
            model.encode_voice(reference=Samples(RECORDING, RATE))


def test_codes_stay_as_they_are_beside_a_cache_in_bfloat16():
    """Also in a slot that was saved and restored: bfloat16 has no integers above 256 but the even ones."""
    eng = Engine(load("base17", 1, dtype=torch.bfloat16), EngineSettings(), torch.device("cpu"))
    sent: dict[str, list[bytes]] = {"a": [], "b": []}
    ends: dict[str, Finished] = {}

    def run_on() -> None:
        while eng.busy:
            for name, event in eng.step():
                if isinstance(event, AudioChunk):
                    sent[name].append(event.steps)
                elif isinstance(event, Finished):
                    ends[name] = event

    voice = cloned(20)
    for name in sent:
        sampling = Sampling(seed=len(name), min_steps=9, max_steps=9)
        eng.add(Request(id=name, text="Hello.", sampling=sampling, conditioning=voice, keep_speech=True), 4)
        run_on()
    for name in sent:
        eng.allow(name, 1 << 40)
        run_on()
    assert eng.stats().swaps >= 2
    for name, end in ends.items():
        assert end.speech is not None and voice.prompt is not None
        codes = end.speech.content["codes"]
        assert codes.tobytes() == b"".join(sent[name]) and (codes[codes > 256] % 2).any()
        assert end.speech.content["speaker"].dtype == np.float32


def test_silence_behind_a_recording_lengthens_its_codes():
    model = load("base06")
    codes = [part for name, part in model.codec.encode(RECORDING, Role.PROMPT) if name == "codes"]
    assert sum(map(len, codes)) == 32  # of 2.5 seconds
