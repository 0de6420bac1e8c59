"""Requests that are doubtful, but can be carried out, are answered with warnings."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.clients.grpc_types import EOF
from support.servers.sessions import session
from support.servers.uploads import PROMPT, REFERENCE, add_hifi, chunks_of, conditioned, recording, upload

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.audio.uploads import decode
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values.inputs import Flush, Text
from voxcpm_server.voices.presets import read

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "voxcpm_grpc/demo"
SPEECH = ROOT / "tests/tools/speech"
RATE = 16000
SHORT, CLIPPED = pb.WARNING_KIND_SHORT_RECORDING, pb.WARNING_KIND_CLIPPED_RECORDING
TRUNCATED, CANCELLED = pb.WARNING_KIND_TRUNCATED_RECORDING, pb.WARNING_KIND_CANCELLED_CHANNELS
LEVEL = pb.WARNING_KIND_RECORDING_LEVEL
NOISY, LANGUAGE = pb.WARNING_KIND_NOISY_RECORDING, pb.WARNING_KIND_LANGUAGE


def samples(name: str = "miles.wav") -> np.ndarray:
    """A recording of speech of 2 s, float32 [n]."""
    return decode((SPEECH / name).read_bytes(), target_rate=RATE, max_seconds=60, max_bytes=10**7).waveform


def wav(data: np.ndarray) -> bytes:
    return wav_bytes(np.clip(data, -1, 1).astype(np.float32), RATE)


def noise(seconds: float, level: float = 0.1) -> np.ndarray:
    return np.random.default_rng(1).normal(0, level, round(seconds * RATE))


def warned(chunks: Iterable[pb.AudioChunk]) -> list[tuple[int, int, str]]:
    """Number of the message, kind and text of each warning."""
    return [(chunk.sequence, warning.kind, warning.message) for chunk in chunks for warning in chunk.warnings]


async def reference_warnings(served: Any, data: bytes) -> list[tuple[int, int, str]]:
    messages = upload(pb.AddReferenceRequest, pb.AddReferenceConfig(), (0, data))
    return warned(await chunks_of(served.stub.AddReference, messages))


async def prompt_warnings(served: Any, data: bytes) -> list[tuple[int, int, str]]:
    messages = upload(pb.AddPromptRequest, pb.AddPromptConfig(transcript="Hi. "), (0, data))
    return warned(await chunks_of(served.stub.AddPrompt, messages))


# ---- recordings


@pytest.mark.parametrize("name", ["hazel.wav", "miles.wav", "george.wav"])
async def test_good_recordings_have_no_warning(served, name):
    speech = samples(name)
    twice = np.concatenate([speech, speech])
    for good in (twice, twice / np.abs(twice).max(), 0.01 * twice, twice + noise(len(twice) / RATE, twice.std() / 10)):
        assert await reference_warnings(served, wav(good)) == []
    assert await prompt_warnings(served, wav(speech)) == []


async def test_the_presets_of_the_bundled_voice_have_no_warning(served):
    for _, data in read(DEMO):
        assert await prompt_warnings(served, data) == []


async def test_a_short_recording_is_stored_with_its_length_in_a_warning(served):
    one = wav(samples()[: RATE + 800])
    ((sequence, kind, text),) = await reference_warnings(served, one)
    assert (sequence, kind) == (0, SHORT)
    assert text.startswith("the reference is short: it lasts 1.05 s and at least 2 s are useful; ")
    assert await prompt_warnings(served, one) == []
    ((_, kind, text),) = await prompt_warnings(served, recording())
    assert kind == SHORT
    assert text.startswith("the prompt is short: it lasts 0.25 s and at least 1 s are useful; ")
    assert len((await served.stub.ListVoices(pb.ListVoicesRequest())).handles) == 3


def stereo(left: np.ndarray, right: np.ndarray) -> bytes:
    """A WAV file of two channels of 16 bits."""
    body = (np.stack([left, right], axis=1) * 32767).astype("<i2").tobytes()
    fmt = struct.pack("<HHIIHH", 1, 2, RATE, 4 * RATE, 4, 16)
    head = struct.pack("<4sI8sI", b"RIFF", 36 + len(body), b"WAVEfmt ", len(fmt)) + fmt
    return head + struct.pack("<4sI", b"data", len(body)) + body


async def test_a_truncated_upload_and_channels_that_cancel_are_stored_with_a_warning(served):
    speech = np.concatenate([samples(), samples()])
    whole = wav(speech)
    for data, kind, text in (
        (whole[: len(whole) * 6 // 10], TRUNCATED, "of the 4.0 s that its file declares (60%) could be decoded"),
        (stereo(speech, -speech), CANCELLED, "2 channels that cancel each other"),
        (wav(0.5 * speech + 0.3), LEVEL, "has a constant offset: its mean is 30% of full scale"),
    ):
        [(sequence, found, message)] = await reference_warnings(served, data)
        assert (sequence, found) == (0, kind)
        assert message.startswith("the reference ") and text in message


@pytest.mark.parametrize("name", ["hazel.wav", "miles.wav", "george.wav"])
async def test_a_clipped_recording_has_its_share_in_a_warning(served, name):
    speech = np.tile(samples(name), 2)
    loud = np.clip(1.5 * speech / np.abs(speech).max(), -1, 1)
    ((_, kind, text),) = await reference_warnings(served, wav(loud))
    share = np.mean(np.abs(loud) >= 0.999)
    assert kind == CLIPPED
    assert text.startswith(
        f"the reference is clipped: {share:.1%} of its samples are at full scale and the limit is 0.1%"
    )
    at_another_rate = wav_bytes(
        np.tile(loud, 2).astype(np.float32), 44100
    )  # resampling moves samples away from full scale
    ((_, kind, _),) = await reference_warnings(served, at_another_rate)
    assert kind == CLIPPED


async def test_a_recording_of_noise_has_its_range_in_a_warning(served):
    speech = np.tile(samples(), 2)
    buried = speech + noise(len(speech) / RATE, float(speech.std()))
    padded = np.concatenate([np.zeros(RATE), noise(2), np.zeros(RATE)])
    for bad, decibels in ((noise(3), 1), (buried, 6), (padded, 1)):
        ((_, kind, text),) = await reference_warnings(served, wav(bad))
        assert kind == NOISY
        prefix, _, rest = text.partition(" dB above its quiet parts and speech needs 7 dB; ")
        head, _, value = prefix.rpartition(" ")
        assert head == "the reference is mostly noise: its loud parts are"
        assert float(value) <= decibels and rest


async def test_each_recording_of_a_hifi_voice_has_its_own_warnings(served):
    both = {"uploaded_prompt": pb.UploadedPrompt(transcript="Hi. ")}
    chunks = await add_hifi(
        served, (PROMPT, recording(0)), (REFERENCE, wav(noise(3))), uploaded_reference=pb.UploadedReference(), **both
    )
    assert [(kind, text.partition(" is ")[0]) for _, kind, text in warned(chunks)] == [
        (SHORT, "the prompt"),
        (NOISY, "the reference"),
    ]
    chunks = await add_hifi(served, (0, wav(noise(1.5))), same_as_prompt=pb.SameAsPrompt(), **both)
    assert [kind for _, kind, _ in warned(chunks)] == [SHORT, NOISY]


async def test_a_recording_in_a_stream_is_warned_about_with_the_header(served):
    inline = pb.InlineReference(audio=pb.EncodedAudio(data=recording()))
    chunks = await served.generate(conditioned(inline_reference=inline), "One. Two. Three.")
    assert [(sequence, kind) for sequence, kind, _ in warned(chunks)] == [(0, SHORT)]
    assert chunks[0].HasField("header")


async def test_encoded_latents_come_with_warnings(served):
    config = pb.EncodeLatentsConfig(role=pb.AUDIO_ROLE_REFERENCE)
    encoded = await served.stub.EncodeLatents(upload(pb.EncodeLatentsRequest, config, (0, wav(noise(1.5)))))
    assert [warning.kind for warning in encoded.warnings] == [SHORT, NOISY]


# ---- languages


@pytest.fixture
async def english(serve_front, fake):
    """A front of a model that claims to speak English only."""
    pool = fake()
    pool.info = replace(pool.info, languages=("en",))
    async with serve_front(pool) as served:
        yield served


async def test_a_script_that_the_model_does_not_claim_is_spoken_with_one_warning(english):
    info = await english.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert info.languages == ["en"]
    chunks = await english.generate("Hello. ", "Привет, мир. ", "Снова. ", "你好。", "Ещё раз.")
    found = warned(chunks)
    assert [kind for _, kind, _ in found] == [LANGUAGE, LANGUAGE]
    first, second = (text for _, _, text in found)
    assert first == (
        "the text has Cyrillic letters, such as 'Привет', and the model claims to speak en only; "
        "parts may be left out or misread"
    )
    assert "Chinese letters, such as '你好'" in second
    assert [request.text.strip() for request in english.pool.requests] == [
        "Hello.",
        "Привет, мир.",
        "Снова.",
        "你好。",
        "Ещё раз.",
    ]


async def test_a_warning_comes_with_the_next_message_after_it_arose(english):
    call = english.stub.Generate()
    await call.write(pb.GenerateRequest(text="Hello."))
    await call.write(pb.GenerateRequest(flush=pb.Flush()))
    before = []
    while not (chunk := await call.read()).HasField("flush_done"):
        before.append(chunk)
    assert warned([*before, chunk]) == []
    await call.write(pb.GenerateRequest(text="Γειά σου."))
    await call.write(pb.GenerateRequest(flush=pb.Flush()))
    following = await call.read()
    assert [(sequence, kind) for sequence, kind, _ in warned([following])] == [(chunk.sequence + 1, LANGUAGE)]
    await call.done_writing()
    rest = []
    while (chunk := await call.read()) is not EOF:
        rest.append(chunk)
    assert warned(rest) == []


@pytest.mark.parametrize("tag", ["de-AT", "de_AT", "DE_at"])
async def test_a_language_that_the_model_does_not_claim_is_warned_about(english, tag):
    config = pb.GenerateConfig(segmentation=pb.Segmentation(language=tag))
    ((sequence, kind, text),) = warned(await english.generate(config, "Guten Tag. Schön."))
    assert (sequence, kind) == (0, LANGUAGE)
    assert text.startswith("the language of the text is de, and the model claims to speak en only")
    config.segmentation.language = "en-GB"
    assert warned(await english.generate(config, "Good day, naïve café №5 µ ½ ™ 😀.")) == []


async def test_a_model_without_a_claim_gets_no_warnings(served):
    config = pb.GenerateConfig(segmentation=pb.Segmentation(language="de"))
    assert warned(await served.generate(config, "Привет. 你好。")) == []


@pytest.mark.parametrize(
    ("languages", "text", "script"),
    [
        (("zh",), "Hello.", "Latin"),
        (("ja",), "漢字とカタカナ。", ""),
        (("zh-Hans", "ru-RU"), "你好。Привет.", ""),
        (("en",), "नमस्ते।", "Devanagari"),
        (("en",), "مرحبا.", "Arabic"),
        (("en",), "안녕하세요.", "Hangul"),
        (("sr",), "Добар dan.", ""),
    ],
)
def test_the_scripts_of_a_language_are_known(fake, languages, text, script):
    pool = fake()
    pool.info = replace(pool.info, languages=languages)
    found = warned(session(pool, [Text(text), Flush("", False)]))
    assert [message.partition(" letters")[0] for _, _, message in found] == (
        [f"the text has {script}"] if script else []
    )
