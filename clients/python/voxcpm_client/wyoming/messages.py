"""The meaning of the events: what a caller asks for, and the description of the models and voices."""

# pyright: basic, reportMissingImports=warning
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wyoming.event import Event
from wyoming.info import Attribution, Info, TtsProgram, TtsVoice
from wyoming.tts import SynthesizeTextFormat

from voxcpm_client.messages.model_info import ServedModel
from voxcpm_client.values.options import SpeechOptions
from voxcpm_client.values.voices import Voice
from voxcpm_client.wyoming.events import BadEvent
from voxcpm_grpc import __version__

DEFAULT_VOICE = "default"  # models without presets and stored voices get it: a program without voices cannot be chosen
DEFAULT_LANGUAGE = "en"  # models that make no claim get it: a voice without a language cannot be chosen either
ATTRIBUTION = Attribution(name="VoxCPM", url="https://github.com/OpenBMB/VoxCPM")


def text_of(event: Event) -> str:
    """The text of an event. Raises BadEvent."""
    text = event.data.get("text")
    if not isinstance(text, str):
        raise BadEvent(f"{event.type} needs a text, which is a string")
    return text


def program_of(event: Event) -> str:
    """The name of the chosen program. Raises BadEvent."""
    name = event.data.get("name")
    if not isinstance(name, str):
        raise BadEvent("select-program needs a name, which is a string")
    return name


def options_of(event: Event, defaults: SpeechOptions) -> SpeechOptions:
    """The options of a request to speak over `defaults`. Raises BadEvent.

    The language of the request is that of the text and that of the speech; not every model can be told the latter.
    """
    options = SpeechOptions(**defaults)
    text_format = event.data.get("text_format")
    if text_format not in (None, "", SynthesizeTextFormat.TEXT.value):
        raise BadEvent(f"text_format is {text_format!r:.40}; this service speaks plain text alone, so send text")
    voice = event.data.get("voice") or {}
    if not isinstance(voice, dict):
        raise BadEvent("voice must be an object with a name or a language")
    if name := _string(voice, "name"):
        for other in ("voice", "no_voice", "prompt", "reference"):
            options.pop(other, None)
        if name != DEFAULT_VOICE:
            options["voice"] = name
    if language := _string(voice, "language"):
        options["language"] = options["speech_language"] = language
    if speaker := _string(voice, "speaker"):
        raise BadEvent(f"voice.speaker is {speaker!r:.40}; a voice has one speaker here, so name a voice alone")
    return options


def _string(voice: dict[str, Any], name: str) -> str:
    value = voice.get(name)
    if not isinstance(value, str | None):
        raise BadEvent(f"voice.{name} must be a string")
    return value or ""


def info(models: Iterable[ServedModel], voices: Iterable[Voice], language: str = "") -> Info:
    """The description of the service: a program for each model, the default first.

    language: of models that make no claim
    """
    found = list(voices)
    return Info(tts=[_program(model, [one for one in found if one.model == model.name], language) for model in models])


def _program(model: ServedModel, voices: list[Voice], language: str) -> TtsProgram:
    languages = list(model.languages) or [language or DEFAULT_LANGUAGE]
    named = {one.name or one.id: _described(one) for one in voices} or {DEFAULT_VOICE: "the voice of the server"}
    return TtsProgram(
        name=model.name,
        description=f"the model {model.name} of voxcpm-grpc",
        attribution=ATTRIBUTION,
        installed=True,
        version=__version__,
        supports_synthesize_streaming=True,
        voices=[
            TtsVoice(
                name=name,
                description=description,
                attribution=ATTRIBUTION,
                installed=True,
                version=None,
                languages=languages,
            )
            for name, description in named.items()
        ],
    )


def _described(voice: Voice) -> str:
    return f"{voice.name}, a preset" if voice.created is None else voice.name or f"a stored voice of kind {voice.kind}"
