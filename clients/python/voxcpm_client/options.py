"""What a caller may ask of a stream, and how that is written on the wire."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import numpy as np
from google.protobuf.duration_pb2 import Duration

from voxcpm_client.errors import InvalidArgument
from voxcpm_client.results import ENCODINGS, Latents
from voxcpm_grpc.audio import Encoding
from voxcpm_grpc.v1 import tts_pb2 as pb

Recording = str | Path | bytes
"""A recording: the path of an audio file of any common kind, or such a file's bytes."""

SegmentationMode = Literal["sentence", "manual"]
FirstSegment = Literal["sentence", "eager"]
Continuity = Literal["carry", "independent"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A recording and, word by word, what is said in it: speech continues it. See `add_prompt` to store one."""

    audio: Recording | Latents
    transcript: str


class SpeechOptions(TypedDict, total=False):
    """How to speak; what is left out is the server's default.

    voice: name of one of the model's presets, id of a stored voice (`prm_`, `ref_` or `hifi_`), or one prompt id and
    one reference id; without any voice and style the server's default voice speaks
    no_voice: let the model choose the voice instead, by the seed
    prompt, reference: recordings sent along instead; they may be combined with each other
    style: description of the voice or the delivery, such as "a calm old man"
    seed: same seed, text, voice and model give the same speech
    cfg_value: strength of the guidance, 0 to 10; timesteps: flow-matching steps; temperature: 0 to 2
    min_steps, max_steps: bounds on a segment's length in steps of 160 ms
    format: `pcm_s16le`, `pcm_f32le` or `wav`; sample_rate: in Hz, by default the model's own
    segmentation: `sentence` speaks whole sentences as they come, `manual` only at a flush or at the end
    language: BCP 47 tag of the text's language, such as `de`; by default the script tells the rules for sentence ends
    max_wait: seconds of a pause in the text after which a complete sentence is spoken, 0.25 by default; 0 for never
    first_segment: `eager` may cut the first sentence of a turn behind a clause, so that a long one is heard earlier
    max_segment_chars: longer sentences are cut
    continuity: `carry` conditions each segment on the one before it, `independent` on the voice alone
    max_lead: seconds of audio that may wait in the server; max_queue_time: seconds to wait for a slot
    request_id: your name for the call in logs and errors; timeout: seconds for the whole call, None for no limit
    """

    voice: str | Sequence[str]
    no_voice: bool
    prompt: Prompt
    reference: Recording | Latents
    style: str
    seed: int
    cfg_value: float
    timesteps: int
    temperature: float
    min_steps: int
    max_steps: int
    format: str
    sample_rate: int
    segmentation: SegmentationMode
    language: str
    max_wait: float
    first_segment: FirstSegment
    max_segment_chars: int
    continuity: Continuity
    max_lead: float
    max_queue_time: float
    request_id: str
    timeout: float | None


def generate_config(options: SpeechOptions) -> pb.GenerateConfig:
    """The first message of a stream. Raises InvalidArgument for options that contradict each other."""
    segmentation = options.get("segmentation")
    first = options.get("first_segment")
    continuity = options.get("continuity")
    config = pb.GenerateConfig(
        request_id=options.get("request_id") or uuid.uuid4().hex,
        conditioning=_conditioning(options),
        turn=pb.TurnConfig(sampling=_sampling(options), style=options.get("style") or ""),
        output=pb.AudioFormat(
            encoding=_encoding(options.get("format")), sample_rate_hz=_count(options, "sample_rate") or 0
        ),
        segmentation=pb.Segmentation(
            mode=segmentation
            and _choice(pb.SegmentationMode, segmentation, get_args(SegmentationMode), "segmentation"),
            continuity=continuity and _choice(pb.ContinuityMode, continuity, get_args(Continuity), "continuity"),
            first_segment=first and _choice(pb.FirstSegment, first, get_args(FirstSegment), "first_segment"),
            language=options.get("language") or "",
            max_chars=_count(options, "max_segment_chars"),
        ),
    )
    if (pause := options.get("max_wait")) is not None:
        config.segmentation.max_wait.CopyFrom(duration("max_wait", pause))
    if (lead := options.get("max_lead")) is not None:
        config.pacing.max_lead.CopyFrom(duration("max_lead", lead))
    if (wait := options.get("max_queue_time")) is not None:
        config.max_queue_time.CopyFrom(duration("max_queue_time", wait))
    return config


def duration(name: str, seconds: float) -> Duration:
    """An option in seconds as it travels. Raises InvalidArgument for what no duration can hold."""
    message = Duration()
    try:
        message.FromTimedelta(timedelta(seconds=seconds))
    except (OverflowError, ValueError, TypeError):
        raise InvalidArgument(f"{name} is {seconds!r}; it must be a number of seconds", field=name) from None
    return message


def read(recording: Recording) -> bytes:
    """The bytes of a recording. Blocks on the file system; raises OSError when there is no such file."""
    return recording if isinstance(recording, bytes) else Path(recording).read_bytes()


def _count(options: SpeechOptions, name: str) -> int | None:
    value: Any = options.get(name)
    if value is None:
        return None
    if isinstance(value, Integral) and 0 <= int(value) < 1 << 32:
        return int(value)
    raise InvalidArgument(f"{name} is {value!r}; it must be a whole number, 0 or more", field=name)


def _sampling(options: SpeechOptions) -> pb.Sampling:
    values = {
        "cfg_value": options.get("cfg_value"),
        "temperature": options.get("temperature"),
        "seed": options.get("seed"),
        "inference_timesteps": options.get("timesteps"),
        "min_steps": options.get("min_steps"),
        "max_steps": options.get("max_steps"),
    }
    try:
        return pb.Sampling(**{name: value for name, value in values.items() if value is not None})
    except (ValueError, TypeError) as error:  # out of the field's type, such as a negative seed
        given = ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)
        raise InvalidArgument(f"a sampling option is out of range ({given}): {error}", field="sampling") from None


def _conditioning(options: SpeechOptions) -> pb.Conditioning:
    given: dict[str, Any] = {}  # by role: an id, or what is sent along

    def put(name: str, value: Any) -> None:
        if name in given:
            raise InvalidArgument(f"two voices give a {name}; name one", field="voice")
        given[name] = value

    voices = options.get("voice") or ()
    for voice in (voices,) if isinstance(voices, str) else voices:
        put(voice_role(voice), voice)
    if (prompt := options.get("prompt")) is not None:
        put("prompt", pb.InlinePrompt(transcript=prompt.transcript, **_source(prompt.audio)))
    if (reference := options.get("reference")) is not None:
        put("reference", pb.InlineReference(**_source(reference)))
    if "preset" in given and len(given) > 1:
        raise InvalidArgument("a preset is a voice of its own; give it alone", field="voice")
    if "hifi" in given and len(given) > 1:
        raise InvalidArgument("a hifi voice is a prompt and a reference already; give it alone", field="voice")
    if given.keys() & {"prompt", "hifi"} and options.get("style"):
        raise InvalidArgument("a style cannot go with a prompt, which would read it aloud; drop one", field="style")
    preset = given.pop("preset", "")
    fields: dict[str, Any] = {
        f"{role}_id" if isinstance(value, str) else f"inline_{role}": value for role, value in given.items()
    }
    if options.get("no_voice") and (fields or preset):
        raise InvalidArgument("no_voice lets the model choose the voice; drop it or the voice", field="no_voice")
    return pb.Conditioning(preset=preset, no_voice=bool(options.get("no_voice")), **fields)


VOICE_PREFIXES: Mapping[str, str] = {"prm_": "prompt", "ref_": "reference", "hifi_": "hifi"}


def voice_role(voice: str) -> str:
    """`prompt`, `reference` or `hifi` for an id, by its prefix; `preset` for any other name."""
    if not voice:
        raise InvalidArgument("a voice is empty; name a preset or an id", field="voice")
    return next((role for prefix, role in VOICE_PREFIXES.items() if voice.startswith(prefix)), "preset")


def _source(source: Recording | Latents) -> dict[str, Any]:
    if not isinstance(source, Latents):
        return {"audio": pb.EncodedAudio(data=read(source))}
    frames = np.ascontiguousarray(source.data, "<f4")
    if frames.ndim != 2:
        raise InvalidArgument(f"latents have shape {frames.shape}; they must be [frames, feat_dim]", field="latents")
    data = frames.tobytes()
    return {"latents": pb.Latents(data=data, feat_dim=frames.shape[1], model_fingerprint=source.model_fingerprint)}


def _encoding(name: str | None) -> Any:
    if not name:
        return pb.AUDIO_ENCODING_UNSPECIFIED
    try:
        return ENCODINGS[Encoding(name)]
    except ValueError:
        raise InvalidArgument(f"format is {name!r}; it must be one of {', '.join(Encoding)}", field="format") from None


def _choice(enum: Any, value: str, choices: tuple[str, ...], field: str) -> Any:
    if value not in choices:
        raise InvalidArgument(f"{field} is {value!r}; it must be one of {', '.join(choices)}", field=field)
    return enum.Value(enum.Name(0).removesuffix("UNSPECIFIED") + value.upper())
