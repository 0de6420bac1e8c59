"""Every row of the table of failed calls in docs/troubleshooting.md: the status, the text, and details to parse."""

from __future__ import annotations

import asyncio
import itertools
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from support.clients.error_rows import ELSEWHERE, Row, missing, rows
from support.servers.targets import Service, Target, config, refusal
from support.servers.uploads import upload

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.v1 import tts_pb2 as pb

SERVICE = "voxcpm_grpc.v1.VoxCPMService"
MANUAL = pb.Segmentation(mode=pb.SEGMENTATION_MODE_MANUAL)
MISSING = "ref_" + "a" * 32
REFERENCE = pb.VOICE_KIND_REFERENCE


@dataclass(frozen=True)
class Scene:
    """A server, and material for mistakes."""

    target: Target
    service: Service
    info: pb.GetModelInfoResponse
    recording: bytes

    @property
    def name(self) -> str:
        """A name that no voice has."""
        return f"conformance {uuid.uuid4().hex}"

    def latents(self, frames: np.ndarray | None = None, **fields: Any) -> pb.InlinePrompt:
        """A prompt of latents, in one patch unless `frames` are given."""
        made = np.zeros((self.info.patch_size, self.info.feat_dim), "<f4") if frames is None else frames
        latents = pb.Latents(data=made.astype("<f4").tobytes(), feat_dim=self.info.feat_dim, **fields)
        return pb.InlinePrompt(transcript="A tone. ", latents=latents)

    async def speak(self, *, text: str = "Hello.", **fields: Any) -> Any:
        return await self.service.speak(config(**fields), text)

    async def store(self, data: bytes | None = None, **options: Any) -> str:
        """The id of a stored prompt."""
        settings = pb.AddPromptConfig(transcript="A tone. ", options=self.target.options_of_voice(**options))
        messages = upload(pb.AddPromptRequest, settings, (0, self.recording if data is None else data))
        return (await self.service.stream("AddPrompt", messages))[0].handle.id


def voice(**fields: Any) -> dict[str, Any]:
    return {"conditioning": pb.Conditioning(**fields)}


async def taken_name(scene: Scene) -> None:
    name = scene.name
    for _ in range(2):
        tone = np.random.default_rng().uniform(-0.5, 0.5, 16000).astype(np.float32)
        await scene.store(wav_bytes(tone, 16000), display_name=name)


async def without_commit(scene: Scene) -> None:
    *messages, _ = upload(pb.AddPromptRequest, pb.AddPromptConfig(transcript="A tone."), (0, scene.recording))
    await scene.service.stream("AddPrompt", messages)


async def after_commit(scene: Scene) -> None:
    messages = list(upload(pb.AddPromptRequest, pb.AddPromptConfig(transcript="A tone."), (0, scene.recording)))
    await scene.service.stream("AddPrompt", [*messages, messages[-1]])


def auditions(scene: Scene, *texts: str, announced: bool = True, committed: bool = True, **preview: Any) -> Any:
    """An upload of a prompt with auditions after the commit, or instead of it."""
    preview_config = pb.Preview(auditions=announced, **preview)
    options = scene.target.options_of_voice()
    settings = pb.AddPromptConfig(transcript="A tone. ", options=options, preview=preview_config)
    messages = list(upload(pb.AddPromptRequest, settings, (0, scene.recording)))[: None if committed else -1]
    messages += [pb.AddPromptRequest(audition=pb.Audition(text=text)) for text in texts]
    return scene.service.stream("AddPrompt", messages)


def too_long_audition(scene: Scene) -> Any:
    return auditions(scene, "x" * (scene.info.limits.max_buffered_text_chars + 1))


async def preset_change(scene: Scene) -> None:
    await scene.service.DeleteVoice(pb.DeleteVoiceRequest(id=scene.info.presets[0]))


async def preset_name(scene: Scene) -> None:
    await scene.store(display_name=scene.info.presets[0])


async def nothing_to_change(scene: Scene) -> None:
    await scene.service.UpdateVoice(pb.UpdateVoiceRequest(id=await scene.store()))


async def styled_prompt(scene: Scene) -> None:
    prompt = pb.InlinePrompt(transcript="A tone. ", audio=pb.EncodedAudio(data=scene.recording))
    request = config(conditioning=pb.Conditioning(inline_prompt=prompt))
    request.turn.style = "sad"
    await scene.service.speak(request, "Hello.")


async def styled_turn(scene: Scene) -> None:
    prompt = pb.InlinePrompt(transcript="A tone. ", audio=pb.EncodedAudio(data=scene.recording))
    request = config(conditioning=pb.Conditioning(inline_prompt=prompt))
    await scene.service.speak(request, "Hello.", pb.TurnConfig(style="sad"))


async def too_long_text(scene: Scene) -> None:
    size = scene.info.limits.max_buffered_text_chars // 20
    await scene.service.speak(config(segmentation=MANUAL), *["x" * size] * 21)


def damaged_wav(scene: Scene) -> bytes:
    """A WAV that declares ten times the samples that it has."""
    data = bytearray(scene.recording)
    at = data.index(b"data") + 4
    (size,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at, 10 * size)
    return bytes(data)


def silence(seconds: float) -> bytes:
    return wav_bytes(np.zeros(int(16000 * seconds), np.float32), 16000)


async def unlisted_timesteps(scene: Scene) -> None:
    await scene.speak(timesteps=max(scene.info.inference_timesteps) + 1)


async def unknown_option(scene: Scene) -> None:
    unknown = {"cfg_value", "top_k"} - {*scene.info.sampling_fields}
    sampling = pb.Sampling(**dict.fromkeys(unknown, 1))
    await scene.service.speak(pb.GenerateConfig(turn=pb.TurnConfig(sampling=sampling)), "Hello.")


ANYWHERE: dict[str, Callable[[Scene], Any]] = {
    "inference_timesteps": unlisted_timesteps,
    "its sampling options are": unknown_option,
    "the latents are of model": lambda s: s.speak(**voice(inline_prompt=s.latents(model_fingerprint="e" * 32))),
    "of the model and cannot be": preset_change,
    "there is no voice": lambda s: s.service.GetVoice(pb.GetVoiceRequest(id=MISSING)),
    "no preset, id or display name": lambda s: s.speak(**voice(voice=s.name)),
    "there is no model": lambda s: s.service.GetModelInfo(pb.GetModelInfoRequest(model=s.name)),
    "there is no preset": lambda s: s.speak(**voice(preset=s.name)),
    "belongs to another recording": taken_name,
    "is the name of a preset": preset_name,
    "has the form of an id": lambda s: s.store(display_name=MISSING),
    "there is nothing to change": nothing_to_change,
    "excludes every other voice": lambda s: s.speak(**voice(voice=MISSING, reference_id=MISSING)),
    "nothing to speak": lambda s: s.speak(text="?! ..."),
    "characters wait to be spoken": too_long_text,
    "played_samples is": lambda s: s.service.speak(config(), "Hello.", pb.Interrupt(played_samples=1 << 40)),
    "the lexicon has": lambda s: s.speak(lexicon=[pb.LexiconEntry(word="GIF")]),
    "the pause has": lambda s: s.service.speak(config(), "Hello.", pb.Pause(milliseconds=60_001)),
    "have a value of size": lambda s: s.speak(
        **voice(inline_prompt=s.latents(np.full((s.info.patch_size, s.info.feat_dim), -1e30)))
    ),
    "without a commit": without_commit,
    "arrived after the commit": after_commit,
    "the config announces none": lambda s: auditions(s, "Hello.", announced=False),
    "an audition arrived before the commit": lambda s: auditions(s, "Hello.", committed=False),
    "which says no text": lambda s: auditions(s, text="Hello."),
    "the text to speak has": too_long_audition,
    "the audio is silent": lambda s: s.store(silence(1)),
    "has the control character": lambda s: s.store(display_name="a\x1b[2Jb"),
    "could not be decoded": lambda s: s.store(b"RIFF not audio at all"),
    "that the file declares could be decoded": lambda s: s.store(damaged_wav(s)),
    "valid protobuf": lambda s: s.service.channel.unary_unary(f"/{SERVICE}/GetVoice")(
        b"\xff\xff\xff\x12", metadata=s.target.metadata
    ),
    "UNIMPLEMENTED": lambda s: s.service.channel.unary_unary(f"/{SERVICE}/Sing")(b"", metadata=s.target.metadata),
}


NEEDS = {  # what a model must take for the calls of these phrases, as marks
    "latents": {"the latents are of model", "have a value of size"},
    "timesteps": {"inference_timesteps"},
    "presets": {"of the model and cannot be", "is the name of a preset"},
    "prompts": {
        *("belongs to another recording", "has the form of an id", "there is nothing to change", "without a commit"),
        *("arrived after the commit", "the config announces none", "an audition arrived before the commit"),
        *("which says no text", "the text to speak has", "the audio is silent", "has the control character"),
        *("is the name of a preset", "could not be decoded", "that the file declares could be decoded"),
    },
}


async def slow_upload(scene: Scene) -> None:
    async def messages() -> AsyncIterator[pb.AddPromptRequest]:
        yield pb.AddPromptRequest(config=pb.AddPromptConfig(transcript="A tone."))
        for offset in itertools.count():
            yield pb.AddPromptRequest(audio=pb.AudioPart(data=b"x", offset_bytes=offset))
            await asyncio.sleep(0.05)

    async for _ in scene.service.AddPrompt(messages()):
        pass


def long_voice(scene: Scene, free: int) -> pb.InlinePrompt:
    """A prompt that leaves so many positions for its text and the text to speak."""
    return scene.latents(np.zeros(((SMALL_MODEL - free) * scene.info.patch_size, scene.info.feat_dim)))


SMALL_MODEL = 200  # positions
SLOW = "the upload took longer than"
STRICT: dict[str, Callable[[Scene], Any]] = {  # these need a server with small limits
    "positions": lambda s: s.speak(text="xyz " * 20, **voice(inline_prompt=long_voice(s, 50))),
    "the shortest text need": lambda s: s.speak(**voice(inline_prompt=long_voice(s, 0))),
    SLOW: slow_upload,
}
STYLED: dict[str, Callable[[Scene], Any]] = {"style cannot": styled_prompt}  # this needs a model that takes styles
CLIENTS = {"voices are given"}  # the second text of a row, which the Python client writes
SHOWN = {**ANYWHERE, **STRICT, **STYLED}


def test_every_row_of_the_table_is_shown_by_a_test() -> None:
    """A new row needs a call in this file that provokes it, or a test that `ELSEWHERE` names."""
    listed = rows()
    assert len(listed) > 50
    unshown = [row.key for row in listed if not any(phrase in SHOWN for phrase in (*row.phrases, row.key))]
    assert sorted(set(unshown) - ELSEWHERE.keys()) == []
    assert (
        sorted((ELSEWHERE.keys() | SHOWN.keys()) - {text for row in listed for text in (*row.phrases, row.key)}) == []
    )
    assert missing() == []


def row_with(phrase: str) -> Row:
    return next(row for row in rows() if phrase in (*row.phrases, row.key))


def marked(phrases: Iterable[str]) -> list[Any]:
    """The phrases as parameters, with the marks of what a model must take for their calls."""

    def marks(phrase: str) -> list[Any]:
        return [getattr(pytest.mark, name) for name, needing in NEEDS.items() if phrase in needing]

    return [pytest.param(one, marks=marks(one)) for one in phrases]


def check(row: Row, phrase: str, outcome: tuple[grpc.StatusCode, str, Any]) -> None:
    """The status is that of the row, and has the details that the contract promises."""
    code, text, details = outcome
    assert code.name == row.status, text
    if code is grpc.StatusCode.UNIMPLEMENTED:  # gRPC's own answer
        return
    assert phrase in text
    assert text.isprintable()
    assert details.request_id
    assert details.bad_request == (code is grpc.StatusCode.INVALID_ARGUMENT)
    if details.bad_request:
        assert details.field or phrase == "valid protobuf"
    assert (details.retry_seconds, details.pushback_ms) == (None, None), "a retry would fail again"


@pytest.mark.parametrize("phrase", marked(ANYWHERE))
async def test_an_error_has_its_status_and_details(
    target: Target, service: Service, info: pb.GetModelInfoResponse, recording: bytes, phrase: str
) -> None:
    scene = Scene(target, service, info, recording)
    check(row_with(phrase), phrase, await refusal(ANYWHERE[phrase](scene)))


@pytest.mark.styles
@pytest.mark.parametrize("phrase", STYLED)
async def test_an_error_of_a_model_that_takes_styles(
    target: Target, service: Service, info: pb.GetModelInfoResponse, recording: bytes, phrase: str
) -> None:
    scene = Scene(target, service, info, recording)
    check(row_with(phrase), phrase, await refusal(STYLED[phrase](scene)))


async def test_voices_styles_and_languages_are_taken_or_refused_as_the_model_info_says(
    target: Target, service: Service, info: pb.GetModelInfoResponse, recording: bytes
) -> None:
    audio = pb.EncodedAudio(data=recording)
    reference = pb.Conditioning(inline_reference=pb.InlineReference(audio=audio))
    prompt = pb.Conditioning(inline_prompt=pb.InlinePrompt(audio=audio, transcript="A tone. "))
    styled, german = config(), config()
    styled.turn.style, german.turn.language = "calm", "German"
    latents = pb.Conditioning(inline_prompt=Scene(target, service, info, recording).latents())
    by_codes = info.architecture == "qwen3_tts"
    for request, phrase, taken in (
        (config(conditioning=prompt), "a prompt needs", pb.VOICE_KIND_PROMPT in info.voice_kinds),
        (
            config(conditioning=reference),
            "a reference needs" if by_codes else "references and hifi voices need",
            REFERENCE in info.voice_kinds,
        ),
        (styled, "a style needs", not info.no_styles),
        (german, "takes no language", "de" in info.speech_languages),
    ):
        if taken:
            assert (await service.speak(request, "Hello."))[-1].HasField("summary")
        else:
            check(row_with(phrase), phrase, await refusal(service.speak(request, "Hello.")))
    if not info.feat_dim and pb.VOICE_KIND_PROMPT in info.voice_kinds:
        outcome = await refusal(service.speak(config(conditioning=latents), "Hello."))
        check(row_with("latents need"), "latents need", outcome)


@pytest.mark.styles
async def test_a_style_of_a_turn_cannot_go_with_the_prompt_of_the_stream(
    target: Target, service: Service, info: pb.GetModelInfoResponse, recording: bytes
) -> None:
    outcome = await refusal(styled_turn(Scene(target, service, info, recording)))
    check(row_with("style cannot"), "style cannot", outcome)
    assert outcome[2].field == "turn.style"


@pytest.mark.parametrize(
    "phrase",
    [pytest.param(one, marks=[pytest.mark.prompts if one == SLOW else pytest.mark.latents]) for one in STRICT],
)
async def test_an_error_of_a_server_with_small_limits(strict: Target, recording: bytes, phrase: str) -> None:
    async with strict.service() as service:
        scene = Scene(strict, service, await service.GetModelInfo(pb.GetModelInfoRequest()), recording)
        check(row_with(phrase), phrase, await refusal(STRICT[phrase](scene)))


@pytest.mark.prompts
@pytest.mark.parametrize("seconds", [0.05, 0.0999])
async def test_a_recording_that_is_too_short_is_refused_with_the_figures(
    target: Target, service: Service, info: pb.GetModelInfoResponse, recording: bytes, seconds: float
) -> None:
    tone = np.random.default_rng().uniform(-0.5, 0.5, int(16000 * seconds)).astype(np.float32)
    outcome = await refusal(Scene(target, service, info, recording).store(wav_bytes(tone, 16000)))
    check(row_with("s and the minimum is"), "s and the minimum is", outcome)


@pytest.mark.references
@pytest.mark.latents
async def test_the_status_of_every_call_has_the_request_id_of_its_caller(service: Service) -> None:
    calls: list[tuple[str, Any, Any]] = [
        ("Generate", pb.GenerateRequest, pb.GenerateConfig(request_id="fault-7", max_queue_time=Duration(seconds=-1))),
        ("AddPrompt", pb.AddPromptRequest, pb.AddPromptConfig(options=pb.VoiceOptions(request_id="fault-7"))),
        (
            "AddReference",
            pb.AddReferenceRequest,
            pb.AddReferenceConfig(options=pb.VoiceOptions(request_id="fault-7", display_name="a\nb")),
        ),
        ("AddHifi", pb.AddHifiRequest, pb.AddHifiConfig(options=pb.VoiceOptions(request_id="fault-7"))),
        ("EncodeLatents", pb.EncodeLatentsRequest, pb.EncodeLatentsConfig(request_id="fault-7")),
    ]
    for method, kind, settings in calls:
        code, text, details = await refusal(getattr(service, method)(iter([kind(config=settings)])))
        assert code is grpc.StatusCode.INVALID_ARGUMENT, (method, text)
        assert details.request_id == "fault-7", method
        assert details.field.startswith("config."), method


async def test_a_message_over_the_limit_is_refused(
    target: Target, service: Service, info: pb.GetModelInfoResponse
) -> None:
    """gRPC refuses it by its length. A proxy between may reset the call instead, because the client still sends."""
    size = info.limits.max_request_message_bytes + 1
    expected = {grpc.StatusCode.RESOURCE_EXHAUSTED}
    if target.server is None:
        expected |= {grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL}
    for call in (
        service.stream("Generate", [pb.GenerateRequest(text="x" * size)]),
        service.GetVoice(pb.GetVoiceRequest(id="x" * size)),
    ):
        code, _, _ = await refusal(call)
        assert code in expected
