"""Requests of Riva's clients as messages of VoxCPMService. Every function raises InvalidRequest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.contracts import options, ssml
from voxcpm_server.contracts.errors import refused
from voxcpm_server.contracts.languages import set_language
from voxcpm_server.contracts.riva import riva_audio_pb2 as audio
from voxcpm_server.contracts.riva import riva_tts_pb2 as riva
from voxcpm_server.models import Models
from voxcpm_server.text.words.spoken_words import is_unspaced

ENCODINGS: Mapping[int, pb.AudioEncoding] = {
    audio.ENCODING_UNSPECIFIED: pb.AUDIO_ENCODING_PCM_S16LE,
    audio.LINEAR_PCM: pb.AUDIO_ENCODING_PCM_S16LE,
    audio.FLAC: pb.AUDIO_ENCODING_FLAC,
    audio.MULAW: pb.AUDIO_ENCODING_MULAW,
    audio.OGGOPUS: pb.AUDIO_ENCODING_OGG_OPUS,
    audio.ALAW: pb.AUDIO_ENCODING_ALAW,
}
RAW = (audio.LINEAR_PCM, audio.MULAW, audio.ALAW)
CONTAINERS = (b"RIFF", b"fLaC", b"OggS")
QUALITY = (1, 40)
SSML = "<speak"

OPTIONS = "custom_configuration"
FIELDS: Mapping[str, str] = {
    "text": "text",
    "config.request_id": "id.value",
    "config.output.encoding": "encoding",
    "config.output.sample_rate_hz": "sample_rate_hz",
    "config.model": "voice_name",
    "config.conditioning.voice": "voice_name",
    "config.conditioning.inline_reference": "zero_shot_data",
    "config.conditioning.inline_reference.audio": "zero_shot_data.audio_prompt",
    "config.conditioning.inline_prompt": "zero_shot_data",
    "config.conditioning.inline_prompt.audio": "zero_shot_data.audio_prompt",
    "config.conditioning.inline_prompt.transcript": "zero_shot_data.transcript",
    **options.paths(OPTIONS),
}
"""The paths of our fields, and those of Riva's, for errors."""


def config(request: riva.SynthesizeSpeechRequest, models: Models) -> pb.GenerateConfig:
    """The config that speaks as a request says."""
    if request.custom_dictionary:
        raise refused("custom_dictionary", "the models read no IPA; write the words as they are spoken")
    if request.encoding not in ENCODINGS:
        names = ", ".join(name for name, value in audio.AudioEncoding.items() if value in ENCODINGS and value)
        raise InvalidRequest(f"encoding is {request.encoding}; it must be one of {names}", field="encoding")
    if request.sample_rate_hz < 0:
        raise InvalidRequest(
            f"sample_rate_hz is {request.sample_rate_hz}; it must be 0 or more", field="sample_rate_hz"
        )
    found = pb.GenerateConfig(
        request_id=request.id.value,
        output=pb.AudioFormat(encoding=ENCODINGS[request.encoding], sample_rate_hz=request.sample_rate_hz),
        word_timestamps=request.enable_word_time_offsets,
    )
    found.model, voice = _voice(request.voice_name, [model.name for model in models])
    if request.HasField("zero_shot_data"):  # clients send the voice of Riva's model beside it
        _set_zero_shot(found.conditioning, request.zero_shot_data)
    else:
        found.conditioning.voice = voice
    options.set_options(found.turn, request.custom_configuration, OPTIONS)
    set_language(found, request.language_code, "language_code", models)
    return found


def words(found: Iterable[pb.WordTime], rate: int) -> list[riva.WordTiming]:
    """The times of words in audio of a rate in Hz."""
    return [
        riva.WordTiming(
            word=one.text,
            start_time=round(1000 * one.start_samples / rate),
            end_time=round(1000 * one.end_samples / rate),
        )
        for one in found
    ]


def texts(text: str) -> list[pb.GenerateRequest]:
    """The messages that speak a text."""
    return ssml.requests(ssml.parts(text, "text") if text.lstrip().startswith(SSML) else [text], "text")


def check_same(first: riva.SynthesizeSpeechRequest, other: riva.SynthesizeSpeechRequest) -> None:
    """Raise InvalidRequest if a message of a stream differs from the first one in more than its text and its id."""
    for field in first.DESCRIPTOR.fields:
        if field.name not in ("text", "id") and getattr(first, field.name) != getattr(other, field.name):
            raise InvalidRequest(
                f"{field.name} differs from that of the first message of the stream; open another stream",
                field=field.name,
            )


def _voice(name: str, models: list[str]) -> tuple[str, str]:
    """The model and the voice of a name, each empty for the default."""
    for model in sorted(models, key=len, reverse=True):
        if name == model:
            return model, ""
        if name.startswith(f"{model}."):
            return model, name.removeprefix(f"{model}.")
    return "", name


def _set_zero_shot(conditioning: pb.Conditioning, given: riva.ZeroShotData) -> None:
    if given.quality and not QUALITY[0] <= given.quality <= QUALITY[1]:
        raise InvalidRequest(
            f"quality is {given.quality}; it must be {QUALITY[0]} to {QUALITY[1]}", field="zero_shot_data.quality"
        )
    if given.sample_rate_hz < 0:
        raise InvalidRequest(
            f"sample_rate_hz is {given.sample_rate_hz}; it must be 0 or more", field="zero_shot_data.sample_rate_hz"
        )
    recording = pb.EncodedAudio(data=given.audio_prompt)
    if given.encoding in RAW and not given.audio_prompt.startswith(CONTAINERS):
        recording.format.encoding = ENCODINGS[given.encoding]
        recording.format.sample_rate_hz = given.sample_rate_hz
    if given.transcript:
        conditioning.inline_prompt.audio.CopyFrom(recording)
        conditioning.inline_prompt.transcript = _before_text(given.transcript)
    else:
        conditioning.inline_reference.audio.CopyFrom(recording)


def _before_text(transcript: str) -> str:
    """A transcript that the spoken text can follow: with a space at its end, in scripts that have them."""
    last = transcript[-1]
    return transcript if last.isspace() or is_unspaced(last) else f"{transcript} "
