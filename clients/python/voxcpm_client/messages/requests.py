"""Options of a call as request messages."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from numbers import Integral
from typing import Any, cast, get_args

import numpy as np
from google.protobuf.duration_pb2 import Duration

from voxcpm_client.errors import InvalidArgument
from voxcpm_client.values.arguments import check_string
from voxcpm_client.values.encodings import ENCODINGS
from voxcpm_client.values.options import (
    Continuity,
    FirstSegment,
    Priority,
    Prompt,
    SegmentationMode,
    SpeechOptions,
    TurnOptions,
)
from voxcpm_client.values.recordings import Recording, read
from voxcpm_client.values.voices import Latents
from voxcpm_grpc.audio import Encoding
from voxcpm_grpc.v1 import tts_pb2 as pb

PROMPT_ID, REFERENCE_ID = "prm_", "ref_"  # ids begin with them


def generate_config(options: SpeechOptions) -> pb.GenerateConfig:
    """The first message of a stream. Raises InvalidArgument for values out of range and options that contradict."""
    segmentation = options.get("segmentation")
    first = options.get("first_segment")
    continuity = options.get("continuity")
    priority = options.get("priority")
    config = pb.GenerateConfig(
        request_id=options.get("request_id") or uuid.uuid4().hex,
        model=options.get("model") or "",
        conditioning=_conditioning(options),
        turn=turn_config(options),
        output=pb.AudioFormat(
            encoding=_encoding(options.get("format")),
            sample_rate_hz=_count(options, "sample_rate") or 0,
            bitrate=_count(options, "bitrate"),
            compression_level=_count(options, "compression_level"),
        ),
        segmentation=pb.Segmentation(
            mode=segmentation
            and _choice(pb.SegmentationMode, segmentation, get_args(SegmentationMode), "segmentation"),
            continuity=continuity and _choice(pb.ContinuityMode, continuity, get_args(Continuity), "continuity"),
            first_segment=first and _choice(pb.FirstSegment, first, get_args(FirstSegment), "first_segment"),
            language=options.get("language") or "",
            max_chars=_count(options, "max_segment_chars"),
        ),
        lexicon=_lexicon(options),
        word_timestamps=bool(options.get("word_timestamps")),
        priority=priority and _choice(pb.Priority, priority, get_args(Priority), "priority"),
    )
    if (pause := options.get("max_wait")) is not None:
        config.segmentation.max_wait.CopyFrom(duration("max_wait", pause))
    if (lead := options.get("max_lead")) is not None:
        config.pacing.max_lead.CopyFrom(duration("max_lead", lead))
    if (wait := options.get("max_queue_time")) is not None:
        config.max_queue_time.CopyFrom(duration("max_queue_time", wait))
    if (trim := options.get("trim_leading_silence")) is not None:
        config.trim_leading_silence.CopyFrom(duration("trim_leading_silence", trim))
    return config


def _lexicon(options: SpeechOptions) -> list[pb.LexiconEntry]:
    entries = cast(object, options.get("lexicon") or {})
    if not isinstance(entries, Mapping):
        raise TypeError(f"lexicon is {type(entries).__name__}; it must be a mapping of words to spellings")
    found: list[pb.LexiconEntry] = []
    for word, spelling in cast("Mapping[object, object]", entries).items():
        if not isinstance(word, str) or not isinstance(spelling, str):
            raise TypeError(f"lexicon has the entry {word!r}: {spelling!r}; words and spellings must be str")
        check_string(word, "lexicon")
        check_string(spelling, "lexicon")
        found.append(pb.LexiconEntry(word=word, spelling=spelling))
    return found


def turn_config(options: TurnOptions) -> pb.TurnConfig:
    """The settings of turns. Raises InvalidArgument for values out of range."""
    config = pb.TurnConfig(
        sampling=_sampling(options),
        style=options.get("style") or "",
        language=options.get("speech_language") or "",
        normalize=bool(options.get("normalize")),
    )
    if (in_text := options.get("style_in_text")) is not None:
        config.style_in_text = bool(in_text)
    if (lora := options.get("lora")) is not None:
        config.lora = lora
    config.retry_badcase = bool(options.get("retry_badcase"))
    if (times := _count(options, "retry_badcase_max_times")) is not None:
        config.retry_badcase_max_times = times
    if (silence := options.get("max_silence")) is not None:
        config.max_silence.CopyFrom(duration("max_silence", silence))
    for name in ("speed", "volume_gain_db", "retry_badcase_ratio_threshold"):
        if (value := options.get(name)) is not None:
            try:
                setattr(config, name, value)
            except TypeError:
                raise InvalidArgument(f"{name} is {value!r}; it must be a number", field=name) from None
    return config


def duration(name: str, seconds: float) -> Duration:
    """An option in seconds as a protobuf Duration. Raises InvalidArgument for a value that it cannot hold."""
    message = Duration()
    try:
        message.FromTimedelta(timedelta(seconds=seconds))
    except (OverflowError, ValueError, TypeError):
        raise InvalidArgument(f"{name} is {seconds!r}; it must be a number of seconds", field=name) from None
    return message


def _count(options: TurnOptions, name: str) -> int | None:
    value: Any = options.get(name)
    if value is None:
        return None
    if isinstance(value, Integral) and 0 <= int(value) < 1 << 32:
        return int(value)
    raise InvalidArgument(f"{name} is {value!r}; it must be a whole number, 0 or more", field=name)


def _sampling(options: TurnOptions) -> pb.Sampling:
    values: dict[str, Any] = {
        "cfg_value": options.get("cfg_value"),
        "temperature": options.get("temperature"),
        "seed": options.get("seed"),
        "inference_timesteps": options.get("timesteps"),
        "min_steps": options.get("min_steps"),
        "max_steps": options.get("max_steps"),
        "top_k": options.get("top_k"),
        "top_p": options.get("top_p"),
        "repetition_penalty": options.get("repetition_penalty"),
        "code_temperature": options.get("code_temperature"),
        "code_top_k": options.get("code_top_k"),
        "code_top_p": options.get("code_top_p"),
    }
    try:
        return pb.Sampling(**{name: value for name, value in values.items() if value is not None})
    except (ValueError, TypeError) as error:  # the field's type does not have this value, such as a negative seed
        given = ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)
        raise InvalidArgument(f"a sampling option is out of range ({given}): {error}", field="sampling") from None


def _conditioning(options: SpeechOptions) -> pb.Conditioning:
    names = _voices(options)
    inline: dict[str, Any] = {}
    if (prompt := options.get("prompt")) is not None:
        if not isinstance(prompt, Prompt):  # pyright: ignore[reportUnnecessaryIsInstance]: not every caller checks types
            raise TypeError(f"prompt is {type(prompt).__name__}; it must be a Prompt, a recording and its transcript")
        if options.get("style"):
            raise InvalidArgument(
                "a style cannot be combined with a prompt, because the model would read it aloud; remove one of them",
                field="style",
            )
        check_string(prompt.transcript, "transcript")
        inline["inline_prompt"] = pb.InlinePrompt(transcript=prompt.transcript, **_source(prompt.audio, options))
    if (reference := options.get("reference")) is not None:
        inline["inline_reference"] = pb.InlineReference(**_source(reference, options))
    if (given := len(names) + len(inline)) > 2:
        raise InvalidArgument(f"{given} voices are given; use one, or a prompt and a reference", field="voice")
    if options.get("no_voice") and given:
        raise InvalidArgument("no_voice cannot be combined with a voice; remove one of them", field="no_voice")
    if len(names) == given == 1:
        return pb.Conditioning(voice=names[0])
    roles = [role for role in ("prompt", "reference") if f"inline_{role}" not in inline]
    fields = {f"{role}_id": name for role, name in zip(roles, names, strict=False)}
    return pb.Conditioning(no_voice=bool(options.get("no_voice")), **fields, **inline)


def _voices(options: SpeechOptions) -> list[str]:
    """The option `voice` as a list, of two voices the prompt first."""
    voices = cast(object, options.get("voice") or ())
    if not isinstance(voices, str | Sequence):
        raise TypeError(f"voice is {type(voices).__name__}; it must be the name or the id of a voice, or two of them")
    names: list[Any] = [voices] if isinstance(voices, str) else list(cast("Sequence[object]", voices))
    for name in names:
        if not isinstance(name, str):
            raise TypeError("voice has an item that is not a str; give the name or the id of each voice")
        check_string(name, "voice")
    if not all(names):
        raise InvalidArgument("a voice is empty; give the name or the id of a voice", field="voice")
    if len(names) == 2 and (names[0].startswith(REFERENCE_ID) or names[1].startswith(PROMPT_ID)):
        names.reverse()
    return names


def _source(source: Recording | Latents, options: SpeechOptions) -> dict[str, Any]:
    if not isinstance(source, Latents):
        denoise, trim = bool(options.get("denoise")), bool(options.get("trim_silence_vad"))
        return {"audio": pb.EncodedAudio(data=read(source), denoise=denoise, trim_silence_vad=trim)}
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
