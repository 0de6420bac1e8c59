"""The request of OpenAI's speech endpoint, with our extensions, as options of the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote

from voxcpm_client import Prompt, SpeechOptions
from voxcpm_gateway.errors import VOICE, HttpError
from voxcpm_gateway.requests.bodies import from_base64
from voxcpm_gateway.requests.fetch import fetch
from voxcpm_gateway.requests.fields import SEEDS, SPEECH_LANGUAGE, Field
from voxcpm_gateway.speech.speaking import Form
from voxcpm_gateway.speech.voice_names import SERVER_DEFAULT

MAX_INPUT = 4096
PCM_RATE = 24000
SPEEDS = (0.5, 2)
FORMATS: Mapping[str, tuple[str, str]] = {  # the values are the format of the client and the media type
    "mp3": ("mp3", "audio/mpeg"),
    "opus": ("ogg_opus", "audio/ogg"),
    "flac": ("flac", "audio/flac"),
    "wav": ("wav", "audio/wav"),
    "pcm": ("pcm_s16le", "audio/pcm"),
}
RECORDING = ("audio", "prompt", "reference")  # errors about the content of a recording name it so
EXTRA_FIELDS = (
    Field("cfg_value", "number", "Strength of the guidance, 0 to 10."),
    Field(
        "inference_timesteps", "integer", "Flow-matching steps, one of those that the server runs.", sets=("timesteps",)
    ),
    Field("temperature", "number", "Scale of the noise, 0 to 2."),
    Field(
        "top_k",
        "integer",
        "Most probable codes that the first one of a step is drawn from. Of Qwen3-TTS, as those below.",
    ),
    Field("top_p", "number", "Sum of the probabilities of these codes, above 0, up to 1."),
    Field("repetition_penalty", "number", "Factor by which first codes that were drawn are less probable, 1 to 2."),
    Field("code_temperature", "number", "As temperature, for the other codes of a step."),
    Field("code_top_k", "integer", "As top_k, for the other codes of a step."),
    Field("code_top_p", "number", "As top_p, for the other codes of a step."),
    Field("max_steps", "integer", "Largest number of steps of a segment."),
)
FIELDS = (
    Field(
        "input",
        "text",
        f"The text to speak, at most {MAX_INPUT} characters.",
        required=True,
        empty_counts=True,
        sets=("text",),
    ),
    Field("model", "string", "The name of the model, or one of OpenAI's: /v1/models lists them."),
    Field(
        "voice",
        "voice",
        "A preset, the name or the id of a stored voice, or one of OpenAI's voices. /v1/audio/voices "
        "lists the first two. Default: the server's default voice, which has the name `default`.",
        sets=(VOICE,),
    ),
    Field("speaker", "voice", "Another name for voice.", sets=(VOICE,)),
    Field(
        "instructions",
        "string",
        "A description of the voice or of the way to speak. Not with ref_text or a voice that continues a recording.",
        sets=("style",),
    ),
    Field(
        "response_format",
        "string",
        "The format of the audio. pcm is 16-bit little-endian, mono, by default at 24000 Hz. Default: mp3.",
        choices=tuple(FORMATS),
        sets=("config.output", "format"),
    ),
    Field("speed", "number", f"The speed of the speech, {SPEEDS[0]:g} to {SPEEDS[1]:g}. Default: 1.", bounds=SPEEDS),
    Field("volume_gain_db", "number", "Change of the volume in dB, -30 to 20. Default: 0."),
    Field(
        "stream_format",
        "string",
        "audio: the body is the audio. sse: server-sent events with the audio in base64. Default: audio.",
        choices=("audio", "sse"),
    ),
    Field(
        "ref_audio",
        "string",
        "A recording whose voice the speech takes: a data URL, or an https URL if the operator allows it.",
        sets=("config.conditioning.inline_prompt", "config.conditioning.inline_reference", *RECORDING),
    ),
    Field(
        "ref_text",
        "string",
        "The words of ref_audio. With them the speech continues the recording.",
        sets=("config.conditioning.inline_prompt.transcript", "transcript"),
    ),
    Field("no_voice", "boolean", "True lets the model choose the voice from seed, even if there is a default voice."),
    Field("language", "string", "Language of the text: a BCP 47 tag, or a name such as German."),
    Field(
        "first_segment",
        "string",
        "eager: the first sentence may be cut after a clause, so that the audio starts earlier. Default: sentence.",
        choices=("sentence", "eager"),
    ),
    Field(
        "style_in_text",
        "boolean",
        "Let input begin with a style in parentheses, as in instructions. Default: that of the server, false unless it "
        "is configured.",
    ),
    Field("normalize", "boolean", "Speak numbers, dates, units and symbols in words."),
    Field(
        "lora",
        "string",
        "A LoRA adapter of the server to speak with; empty for none. Default: that of the voice.",
        empty_counts=True,
    ),
    Field(
        "speech_language",
        "string",
        "The language that the model shall speak, if it can be told. Default: it finds it in the text.",
        sets=SPEECH_LANGUAGE,
    ),
    Field("lexicon", "strings", "Words, and the spellings that are spoken instead of them, at most 1,000."),
    Field("seed", "integer", "Seed of the random numbers, 0 to 2**63 - 1.", bounds=SEEDS),
    Field(
        "sample_rate",
        "integer",
        "Sample rate of the audio in Hz. Default: 24000 for pcm, else that of the model.",
        sets=("sample_rate_hz",),
    ),
    Field(
        "trim_leading_silence",
        "number",
        "Most seconds of silence at the start of the speech that are left out, 0 to 10. Default: 1, by the server.",
    ),
    Field(
        "word_timestamps",
        "boolean",
        "Send the time of each word, in events speech.audio.words and speech.audio.done. Needs stream_format sse.",
    ),
    Field("extra_params", "object", "Sampling parameters.", fields=EXTRA_FIELDS),
    Field("backend", "string", "Ignored. LibreChat sends it."),
)
EXTRA_OPTIONS = {"inference_timesteps": "timesteps"}  # the client has another name for them
# The client gets these options as they are.
PLAIN = (
    *("first_segment", "language", "lexicon", "lora", "no_voice", "normalize", "sample_rate", "seed", "style_in_text"),
    *("speech_language", "trim_leading_silence", "volume_gain_db", "word_timestamps"),
)
DATA_URL = "data:"
IDEOGRAPHS = 0x2E80  # scripts without spaces between sentences begin at this code point


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """A checked request.

    voice: the name that the caller gave; empty for none
    model: the name that the caller gave; empty for none
    """

    text: str
    voice: str
    model: str
    options: SpeechOptions
    media_type: str
    form: Form


async def parse(values: Mapping[str, Any], *, allow_urls: bool) -> SpeechRequest:
    """Check how the values of FIELDS go together, and fetch the recording. Raises HttpError.

    allow_urls: True if the recording may be an https URL
    """
    text: str = values["input"]
    if not text.strip():
        raise HttpError(400, "input is empty; give the text to speak", param="input")
    if len(text) > MAX_INPUT:
        raise HttpError(
            400,
            f"input has {len(text)} characters and the limit is {MAX_INPUT}; send it in parts",
            param="input",
            code="string_above_max_length",
        )
    if values.get("word_timestamps") and values.get("stream_format") != "sse":
        raise HttpError(
            400,
            "word_timestamps is true, and a body of audio has no room for words; set stream_format to sse",
            param="word_timestamps",
        )
    wanted = values.get("response_format", "mp3")
    encoding, media_type = FORMATS[wanted]
    options: dict[str, Any] = {"format": encoding, "max_wait": 0.0}  # the text is complete
    if wanted == "pcm":
        options["sample_rate"] = PCM_RATE
    options |= {name: values[name] for name in PLAIN if name in values}
    if "instructions" in values:
        options["style"] = values["instructions"]
    if values.get("speed", 1) != 1:
        options["speed"] = values["speed"]
    extra: Mapping[str, Any] = values.get("extra_params", {})
    for name, value in extra.items():
        options[EXTRA_OPTIONS.get(name, name)] = value
    voice = _voice(values)
    options |= await _recording(values, voice, allow_urls)
    return SpeechRequest(
        text=text,
        voice=voice,
        model=values.get("model", ""),
        options=cast(SpeechOptions, options),
        media_type=media_type,
        form=values.get("stream_format", "audio"),
    )


def _voice(values: Mapping[str, Any]) -> str:
    names = {values[name] for name in ("voice", "speaker") if name in values}
    if len(names) > 1:
        raise HttpError(400, "voice and speaker name different voices; give one of them", param="speaker")
    return next(iter(names), "")


async def _recording(values: Mapping[str, Any], voice: str, allow_urls: bool) -> dict[str, Any]:
    if "ref_audio" not in values:
        if "ref_text" in values:
            raise HttpError(400, "ref_text needs ref_audio, the recording of these words", param="ref_text")
        return {}
    if voice and voice.lower() != SERVER_DEFAULT:
        name = "voice" if "voice" in values else "speaker"
        raise HttpError(
            400,
            f"{name} is {voice[:100]!r} and ref_audio gives another voice; leave out ref_audio, or send the {name} "
            f"{SERVER_DEFAULT!r}",
            param=name,
        )
    if "instructions" in values and "ref_text" in values:
        raise HttpError(
            400,
            "instructions cannot go with ref_text: the speech continues the recording, and would read the instructions "
            "aloud; leave out one of the two",
            param="instructions",
        )
    audio = await _audio(values["ref_audio"], allow_urls)
    if text := values.get("ref_text"):
        return {"prompt": Prompt(audio, with_space(text))}
    return {"reference": audio}


def with_space(transcript: str) -> str:
    """A transcript that the spoken text can follow: with a space at its end, in scripts that have them."""
    return transcript if transcript[-1:].isspace() or ord(transcript[-1:] or " ") >= IDEOGRAPHS else f"{transcript} "


async def _audio(source: str, allow_urls: bool) -> bytes:
    source = source.strip()
    if source[: len(DATA_URL)].lower() == DATA_URL:
        head, _, data = source.partition(",")
        if not "".join(head.lower().split()).endswith(";base64"):
            raise HttpError(400, "ref_audio must be a data URL in base64: data:audio/wav;base64,...", param="ref_audio")
        return await from_base64(unquote(data) if "%" in data else data, "ref_audio")
    if not allow_urls:
        raise HttpError(
            400,
            "ref_audio must be a data URL (data:audio/wav;base64,...); this server does not fetch recordings",
            param="ref_audio",
            code="unsupported_value",
        )
    return await fetch(source)
