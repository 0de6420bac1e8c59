"""Replies: from values to messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from voxcpm_grpc import __version__
from voxcpm_grpc.abilities import LatentShape
from voxcpm_grpc.audio import SAMPLE_RATES, AudioFormat
from voxcpm_grpc.audio.encode import available_encodings
from voxcpm_grpc.events import FinishReason
from voxcpm_grpc.request import ModelInfo, Sampling, VoicePart
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values.outputs import (
    EndReason,
    Heard,
    ModelSummary,
    RequestWarning,
    Segment,
    Summary,
    WordTime,
    between,
)
from voxcpm_server.values.voice import Voice, VoiceKind
from voxcpm_server.wire.enums import CUT_VALUES, ENCODING_VALUES, KIND_VALUES, REASON_VALUES, WARNING_VALUES

OF_ALL = ("seed", "min_steps", "max_steps")
"""The fields of Sampling that every model has."""


def chunk(
    audio: bytes, *, sequence: int, offset: int, samples: int, turn: int, segment: int, **extras: Any
) -> pb.AudioChunk:
    """A message of a stream.

    sequence: number of the message
    offset: position of its first sample
    extras: other fields, built by the functions of this module
    """
    return pb.AudioChunk(
        audio=audio,
        sequence=sequence,
        offset_samples=offset,
        sample_count=samples,
        turn_index=turn,
        segment_index=segment,
        **extras,
    )


def warning(warning: RequestWarning) -> pb.Warning:
    return pb.Warning(kind=WARNING_VALUES[warning.kind], message=warning.message)


def flush_done(tag: str, at: int) -> pb.FlushDone:
    return pb.FlushDone(tag=tag, at_samples=at)


def interrupted(tag: str, sent: int, heard: Heard | None, dropped_flushes: Iterable[str]) -> pb.Interrupted:
    """`heard` is None if the caller does not say what was played."""
    reply = pb.Interrupted(tag=tag, sent_samples=sent, dropped_flush_tags=dropped_flushes)
    if heard is not None:
        reply.heard_turn_index, reply.heard_input_end = heard.turn, heard.input_end
        reply.heard_estimated = heard.estimated
    return reply


def get_voice(voice: Voice, *, model: str, with_owner: bool) -> pb.GetVoiceResponse:
    return pb.GetVoiceResponse(handle=handle(voice, model=model, with_owner=with_owner))


def update_voice(voice: Voice, *, model: str, with_owner: bool) -> pb.UpdateVoiceResponse:
    return pb.UpdateVoiceResponse(handle=handle(voice, model=model, with_owner=with_owner))


def delete_voice(kept: Iterable[str]) -> pb.DeleteVoiceResponse:
    """`kept`: names that the voice keeps."""
    return pb.DeleteVoiceResponse(kept_names=kept)


def handle(voice: Voice, *, model: str, reused: bool = False, with_owner: bool = False) -> pb.VoiceHandle:
    """The description of a voice for the model of this name, `with_owner` for admins only."""
    return pb.VoiceHandle(
        id=voice.id,
        kind=KIND_VALUES[voice.kind],
        display_name=voice.display_name,
        content_digest=voice.id.partition("_")[2],
        model_fingerprint=voice.fingerprint,
        transcript=voice.transcript,
        prompt_duration=duration(voice.prompt_seconds) if voice.prompt_seconds else None,
        reference_duration=duration(voice.reference_seconds) if voice.reference_seconds else None,
        prompt_id=voice.prompt_id,
        reference_id=voice.reference_id,
        create_time=timestamp(voice.created) if voice.created else None,
        expire_time=timestamp(voice.expires) if voice.ttl else None,
        labels=voice.labels,
        reused=reused,
        principal=voice.principal if with_owner else "",
        model=model,
        lora=voice.lora,
        names=[pb.VoiceName(display_name=one.name, labels=one.labels) for one in voice.names],
    )


def voice_page(
    voices: Iterable[Voice], token: str, *, model_of: Callable[[str], str], with_owner: bool
) -> pb.ListVoicesResponse:
    """`model_of`: the name of the model with a fingerprint."""
    handles = [handle(voice, model=model_of(voice.fingerprint), with_owner=with_owner) for voice in voices]
    return pb.ListVoicesResponse(handles=handles, next_page_token=token)


def latents(
    part: VoicePart, fingerprint: str, seconds: float, warnings: Iterable[RequestWarning]
) -> pb.EncodeLatentsResponse:
    """`part` has latents alone, `seconds` is the length of the recording."""
    (array,) = part.content.values()
    flat = pb.Latents(
        data=np.ascontiguousarray(array, "<f4").tobytes(), feat_dim=array.shape[-1], model_fingerprint=fingerprint
    )
    return pb.EncodeLatentsResponse(latents=flat, audio_duration=duration(seconds), warnings=map(warning, warnings))


def model_info(
    info: ModelInfo, limits: LimitSettings, presets: Sequence[str], default_voice: str, loras: Iterable[str]
) -> pb.GetModelInfoResponse:
    sampling, shape = info.completed(Sampling()), info.latents or LatentShape(frames=0, dim=0)
    timesteps = info.option("inference_timesteps")
    return pb.GetModelInfoResponse(
        model=info.name,
        model_fingerprint=info.fingerprint,
        input_sample_rate_hz=info.input_sample_rate,
        output_sample_rate_hz=info.output_sample_rate,
        feat_dim=shape.dim,
        patch_size=shape.frames,
        samples_per_step=info.samples_per_step,
        output_encodings=sorted(ENCODING_VALUES[one] for one in available_encodings()),
        output_sample_rates_hz=SAMPLE_RATES,
        limits=pb.Limits(
            max_request_message_bytes=limits.max_message_bytes,
            max_buffered_text_chars=limits.max_text_chars,
            max_segment_chars=limits.max_segment_chars,
            max_prompt_duration=duration(limits.max_prompt_seconds),
            max_reference_duration=duration(limits.max_reference_seconds),
            max_upload_bytes=limits.max_upload_bytes,
            max_inline_audio_bytes=limits.max_inline_audio_bytes,
        ),
        default_sampling=pb.Sampling(
            min_steps=sampling.min_steps, **{one.name: getattr(sampling, one.name) for one in info.options}
        ),
        server_version=__version__,
        architecture=info.architecture,
        inference_timesteps=map(int, timesteps.choices) if timesteps else (),
        max_model_len=info.max_model_len,
        max_slots=info.max_slots,
        device=info.device,
        dtype=info.dtype,
        codec_dtype=info.codec_dtype,
        presets=presets,
        default_voice=default_voice,
        languages=info.languages,
        voice_kinds=[KIND_VALUES[kind] for kind in _kinds(info)],
        no_styles=not info.can("style"),
        loras=loras,
        speech_languages=info.speech_languages,
        sampling_fields=[*(one.name for one in info.options), *OF_ALL],
        text_streaming=info.can("text_streaming"),
        default_max_silence=_silence(info),
        needs_voice=not info.can("no_voice"),
    )


def _kinds(info: ModelInfo) -> Iterable[VoiceKind]:
    """The kinds of voices that a model speaks with."""
    return (kind for kind in VoiceKind if info.can(kind.ability) and (info.speakers or kind is not VoiceKind.SPEAKER))


def _silence(info: ModelInfo) -> Duration | None:
    steps = info.ends.max_silent_steps
    return None if steps is None else duration(steps * info.step_seconds)


def models(found: Iterable[ModelSummary]) -> pb.ListModelsResponse:
    return pb.ListModelsResponse(
        models=[
            pb.Model(
                name=one.info.name,
                is_default=one.is_default,
                serving=one.serving,
                architecture=one.info.architecture,
                model_fingerprint=one.info.fingerprint,
                output_sample_rate_hz=one.info.output_sample_rate,
                presets=one.presets,
                default_voice=one.default_voice,
                languages=one.info.languages,
                engines=one.engines,
                engines_ready=one.engines_ready,
            )
            for one in found
        ]
    )


def header(
    info: ModelInfo,
    format: AudioFormat,
    request_id: str,
    *,
    delay: int = 0,
    seed: int = 0,
    voice: str = "",
    queue: float = 0.0,
) -> pb.StreamHeader:
    """The header of a stream.

    delay: samples that a decoder makes before the first one
    voice: name of the voice; empty if the model chooses it
    queue: seconds that the first segment waited for a slot
    """
    return pb.StreamHeader(
        request_id=request_id,
        format=pb.AudioFormat(
            encoding=ENCODING_VALUES[format.encoding],
            sample_rate_hz=format.sample_rate,
            bitrate=format.bitrate,
            compression_level=format.compression_level,
        ),
        model=info.name,
        model_fingerprint=info.fingerprint,
        seed=seed,
        voice=voice,
        queue_time=duration(queue),
        codec_delay_samples=delay,
    )


def segment_event(
    kind: pb.SegmentEventKind,
    segment: Segment,
    at: int,
    reason: FinishReason | EndReason | None = None,
    *,
    first_turn: int = 0,
) -> pb.SegmentEvent:
    """`at` is the position of the event; `reason` ends the segment; `first_turn` is added to the segment's turn."""
    return pb.SegmentEvent(
        kind=kind,
        turn_index=first_turn + segment.turn,
        segment_index=segment.index,
        at_samples=at,
        text=segment.text,
        input_start=segment.start,
        input_end=segment.end,
        finish_reason=REASON_VALUES[reason],
        cut_reason=CUT_VALUES[segment.cut],
    )


def word(word: WordTime) -> pb.WordTime:
    return pb.WordTime(
        turn_index=word.turn,
        segment_index=word.segment,
        text=word.text,
        input_start=word.input_start,
        input_end=word.input_end,
        start_samples=word.start,
        end_samples=word.end,
        estimated=word.estimated,
    )


def summary(
    summary: Summary, *, samples: int, padding: int, bytes: int, now: float, words: Iterable[WordTime] = ()
) -> pb.StreamSummary:
    """The summary of a stream that ends at `now`, seconds of time.monotonic(). padding: samples after the last one."""
    return pb.StreamSummary(
        finish_reason=REASON_VALUES[summary.reason],
        total_samples=samples,
        total_bytes=bytes,
        turns=summary.turns,
        segments=summary.segments,
        input_chars=summary.chars,
        generated_steps=summary.steps,
        queue_time=duration(summary.queue),
        time_to_first_audio=duration(summary.first_audio_seconds),
        engine_time=duration(summary.engine),
        wall_time=duration(now - summary.began),
        cached_prefix_tokens=summary.cached_tokens,
        text_to_first_audio=duration(between(summary.first_text, summary.first_audio)),
        codec_padding_samples=padding,
        time_to_first_audible=duration(summary.first_audible_seconds),
        text_to_first_audible=duration(between(summary.first_text, summary.first_audible)),
        trimmed_samples=summary.trimmed,
        continuations=summary.continuations,
        words=map(word, words),
    )


def duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMilliseconds(round(seconds * 1e3))
    return stamp
