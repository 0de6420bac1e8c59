"""Requests of Google's clients as messages of VoxCPMService. Every function raises InvalidRequest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from google.protobuf.message import Message

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.contracts import ssml
from voxcpm_server.contracts.errors import refused
from voxcpm_server.contracts.google import cloud_tts_pb2 as google
from voxcpm_server.contracts.languages import set_language
from voxcpm_server.contracts.speech import check_length
from voxcpm_server.models import Models

RATE = 24000  # most of Google's voices have this rate, and programs take it for granted
TELEPHONE = (google.MULAW, google.ALAW)  # VoxCPMService chooses their rate
ENCODINGS: Mapping[int, pb.AudioEncoding] = {
    google.LINEAR16: pb.AUDIO_ENCODING_PCM_S16LE,  # the header of WAV follows with the length of all audio
    google.MP3: pb.AUDIO_ENCODING_MP3,
    google.OGG_OPUS: pb.AUDIO_ENCODING_OGG_OPUS,
    google.MULAW: pb.AUDIO_ENCODING_MULAW,
    google.ALAW: pb.AUDIO_ENCODING_ALAW,
    google.PCM: pb.AUDIO_ENCODING_PCM_S16LE,
}
STREAMED = (google.PCM, google.OGG_OPUS, *TELEPHONE)
PAUSES: Mapping[str, int] = {"pause short": 250, "pause": 500, "pause long": 1000}  # milliseconds
PAUSE = re.compile(rf"\[({'|'.join(PAUSES)})\]", re.IGNORECASE)
PINYIN = re.compile(r"[a-zü:]+[0-5]", re.IGNORECASE)
PRONUNCIATIONS = "custom_pronunciations.pronunciations"
CONFIG = "streaming_config"
STREAMING_AUDIO = f"{CONFIG}.streaming_audio_config"


def paths(prefix: str, audio: str, lexicon: str) -> dict[str, str]:
    """The paths of our fields, and those of Google's messages, for errors."""
    return {
        "text": "input",
        "config.conditioning.voice": f"{prefix}voice.name",
        "config.model": f"{prefix}voice.model_name",
        "config.output.encoding": f"{audio}.audio_encoding",
        "config.output.sample_rate_hz": f"{audio}.sample_rate_hertz",
        "config.turn.speed": f"{audio}.speaking_rate",
        "config.turn.volume_gain_db": f"{audio}.volume_gain_db",
        "config.lexicon": lexicon,
        "config.turn.style": "input.prompt",
        "turn.style": "input.prompt",
    }


FIELDS = paths("", "audio_config", f"input.{PRONUNCIATIONS}")
STREAM_FIELDS = paths(f"{CONFIG}.", STREAMING_AUDIO, f"{CONFIG}.{PRONUNCIATIONS}")


def config(request: google.SynthesizeSpeechRequest, models: Models) -> pb.GenerateConfig:
    """The config that speaks a whole text."""
    audio, path = request.audio_config, "audio_config"
    _refuse(audio, path, "pitch", "the pitch is that of the voice; choose another voice")
    _refuse(audio, path, "effects_profile_id", "there are no effects for devices; leave it empty")
    found = pb.GenerateConfig(
        output=_output(audio.audio_encoding, audio.sample_rate_hertz, ENCODINGS, path),
        turn=_turn(audio.speaking_rate, request.advanced_voice_options, ""),
        lexicon=_lexicon(request.input.custom_pronunciations, "input."),
    )
    if audio.volume_gain_db:
        found.turn.volume_gain_db = audio.volume_gain_db
    found.turn.style = request.input.prompt
    _set_voice(found, request.voice, "", models)
    return found


def texts(text: google.SynthesisInput) -> list[pb.GenerateRequest]:
    """The messages that speak a whole text."""
    kind = text.WhichOneof("input_source")
    if kind is None:
        raise InvalidRequest("input has no text; set text, ssml or markup", field="input")
    _refuse(text, "input", "multi_speaker_markup", "a request has one voice; send a request for each speaker")
    field, value = f"input.{kind}", getattr(text, kind)
    check_length(value, field, "send it in parts, or by StreamingSynthesize")
    if kind == "ssml":
        return ssml.requests(ssml.parts(value, field), field)
    return ssml.requests(_marked(value) if kind == "markup" else [value], field)


def streaming_config(request: google.StreamingSynthesizeConfig, models: Models) -> pb.GenerateConfig:
    """The config of a stream."""
    audio, prefix = request.streaming_audio_config, f"{CONFIG}."
    encoding = audio.audio_encoding if request.HasField("streaming_audio_config") else google.PCM
    found = pb.GenerateConfig(
        output=_output(encoding, audio.sample_rate_hertz, STREAMED, STREAMING_AUDIO),
        turn=_turn(audio.speaking_rate, request.advanced_voice_options, prefix),
        lexicon=_lexicon(request.custom_pronunciations, prefix),
    )
    _set_voice(found, request.voice, prefix, models)
    return found


def streaming_texts(text: google.StreamingSynthesisInput) -> list[pb.GenerateRequest]:
    """The messages that speak a part of the text of a stream."""
    _refuse(text, "input", "multi_speaker_markup", "a stream has one voice; open a stream for each speaker")
    if text.WhichOneof("input_source") == "markup":
        return ssml.requests(_marked(text.markup), "input.markup")
    return ssml.requests([text.text], "input.text")


def restyled(turn: pb.TurnConfig, style: str) -> pb.GenerateRequest:
    """The message that gives a style to a stream without text so far, whose turns are as in its config otherwise."""
    changed = pb.TurnConfig()
    changed.CopyFrom(turn)
    changed.style = style
    return pb.GenerateRequest(turn=changed)


def _marked(text: str) -> Iterator[ssml.Part]:
    """Text with pauses in brackets."""
    at = 0
    for found in PAUSE.finditer(text):
        yield text[at : found.start()]
        yield PAUSES[found[1].lower()]
        at = found.end()
    yield text[at:]


def _output(encoding: int, rate: int, allowed: Iterable[int], path: str) -> pb.AudioFormat:
    if encoding not in allowed:
        names = {value: name for name, value in google.AudioEncoding.items()}
        raise InvalidRequest(
            f"audio_encoding is {names.get(encoding, encoding)}; it must be one of "
            f"{', '.join(names[one] for one in allowed)}",
            field=f"{path}.audio_encoding",
        )
    if rate < 0:
        raise InvalidRequest(f"sample_rate_hertz is {rate}; it must be 0 or more", field=f"{path}.sample_rate_hertz")
    default = 0 if encoding in TELEPHONE else RATE
    return pb.AudioFormat(encoding=ENCODINGS[encoding], sample_rate_hz=rate or default)


def _turn(rate: float, options: google.AdvancedVoiceOptions, prefix: str) -> pb.TurnConfig:
    path = f"{prefix}advanced_voice_options"
    _refuse(options, path, "low_latency_journey_synthesis", "the models have no such mode; leave it out")
    for name in ("relax_safety_filters", "safety_settings"):
        _refuse(options, path, name, "this server has no filters; leave it out")
    turn = pb.TurnConfig(normalize=options.enable_textnorm)
    if rate:
        turn.speed = rate
    return turn


def _set_voice(found: pb.GenerateConfig, voice: google.VoiceSelectionParams, prefix: str, models: Models) -> None:
    for name in ("custom_voice", "voice_clone"):
        _refuse(voice, f"{prefix}voice", name, "set voice.name to the name or the id of a stored voice")
    _refuse(voice, f"{prefix}voice", "multi_speaker_voice_config", "a request has one voice; set voice.name")
    found.conditioning.voice = voice.name
    found.model = voice.model_name
    set_language(found, voice.language_code, f"{prefix}voice.language_code", models)


def _lexicon(given: google.CustomPronunciations, prefix: str) -> Iterator[pb.LexiconEntry]:
    for index, one in enumerate(given.pronunciations):
        field = f"{prefix}{PRONUNCIATIONS}[{index}]"
        if one.phonetic_encoding != google.CustomPronunciationParams.PHONETIC_ENCODING_PINYIN:
            raise refused(
                f"{field}.phonetic_encoding",
                "the models read pinyin alone; use PHONETIC_ENCODING_PINYIN, or write the text as it is spoken",
            )
        syllables = PINYIN.findall(one.pronunciation)
        if not syllables or PINYIN.sub("", one.pronunciation).strip(" '-"):
            raise InvalidRequest(
                f"pronunciation is {one.pronunciation[:80]!r}; write syllables with the number of their tone, such as "
                "'ni3 hao3'",
                field=f"{field}.pronunciation",
            )
        yield pb.LexiconEntry(word=one.phrase, spelling="".join(f"{{{syllable}}}" for syllable in syllables))


def _refuse(message: Message, path: str, name: str, because: str) -> None:
    """Raise InvalidRequest if a field of a message, which has this path, differs from its default."""
    if any(field.name == name and value for field, value in message.ListFields()):
        raise refused(f"{path}.{name}", because)
