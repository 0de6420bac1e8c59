"""Response messages as results."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from voxcpm_client.messages.model_info import Limits, ModelInfo, ServedModel
from voxcpm_client.values import results, voices
from voxcpm_client.values.encodings import BY_NUMBER, PCM
from voxcpm_grpc.audio import Encoding
from voxcpm_grpc.text.characters import escaped
from voxcpm_grpc.v1 import tts_pb2 as pb

log = logging.getLogger("voxcpm_client")  # programs know the log by this name


def header(message: pb.StreamHeader) -> results.Header:
    return results.Header(
        request_id=message.request_id,
        encoding=BY_NUMBER.get(message.format.encoding, Encoding.PCM_S16LE),
        sample_rate=message.format.sample_rate_hz,
        model=message.model,
        model_fingerprint=message.model_fingerprint,
        seed=message.seed,
        voice=message.voice,
        queue_seconds=_seconds(message.queue_time),
        codec_delay_samples=message.codec_delay_samples,
    )


def warnings(messages: Iterable[pb.Warning], request_id: str) -> tuple[results.SpeechWarning, ...]:
    """The warnings of a message, which are logged, too."""
    found = tuple(results.SpeechWarning(kind=_name(pb.WarningKind, one.kind), message=one.message) for one in messages)
    for one in found:
        log.warning("%s (request %s)", escaped(one.message), request_id)
    return found


def chunk(message: pb.AudioChunk, header: results.Header) -> results.Chunk:
    flushed = message.flush_done if message.HasField("flush_done") else None
    interrupted = message.interrupted if message.HasField("interrupted") else None
    return results.Chunk(
        audio=message.audio,
        sequence=message.sequence,
        offset=message.offset_samples,
        sample_count=message.sample_count,
        sample_rate=header.sample_rate,
        encoding=header.encoding,
        turn=message.turn_index,
        segment=message.segment_index,
        events=tuple(map(_event, message.segment_events)),
        flushed=flushed and results.Flushed(tag=flushed.tag, at_samples=flushed.at_samples),
        interrupted=interrupted and _interrupted(interrupted),
        words=words(message.words),
    )


def words(messages: Iterable[pb.WordTime], offset: int = 0) -> tuple[results.WordTime, ...]:
    """The times of words in the audio from a position of the stream on."""
    return tuple(
        results.WordTime(
            text=one.text,
            start_samples=one.start_samples - offset,
            end_samples=one.end_samples - offset,
            input_start=one.input_start,
            input_end=one.input_end,
            turn=one.turn_index,
            segment=one.segment_index,
            estimated=one.estimated,
        )
        for one in messages
    )


def _interrupted(message: pb.Interrupted) -> results.Interrupted:
    heard = message.HasField("heard_input_end")
    return results.Interrupted(
        tag=message.tag,
        sent_samples=message.sent_samples,
        heard_input_end=message.heard_input_end if heard else None,
        heard_turn=message.heard_turn_index if heard else None,
        heard_estimated=message.heard_estimated,
        dropped_flushes=tuple(message.dropped_flush_tags),
    )


def _event(message: pb.SegmentEvent) -> results.SegmentEvent:
    return results.SegmentEvent(
        kind=_name(pb.SegmentEventKind, message.kind),
        turn=message.turn_index,
        segment=message.segment_index,
        at_samples=message.at_samples,
        text=message.text,
        input_start=message.input_start,
        input_end=message.input_end,
        finish_reason=_name(pb.FinishReason, message.finish_reason),
        cut_reason=_name(pb.CutReason, message.cut_reason),
        trimmed_samples=message.trimmed_samples,
    )


def summary(message: pb.StreamSummary) -> results.Summary:
    return results.Summary(
        finish_reason=_name(pb.FinishReason, message.finish_reason),
        total_samples=message.total_samples,
        total_bytes=message.total_bytes,
        turns=message.turns,
        segments=message.segments,
        input_chars=message.input_chars,
        generated_steps=message.generated_steps,
        queue_seconds=_seconds(message.queue_time),
        time_to_first_audio_seconds=_seconds(message.time_to_first_audio),
        text_to_first_audio_seconds=_seconds(message.text_to_first_audio),
        engine_seconds=_seconds(message.engine_time),
        wall_seconds=_seconds(message.wall_time),
        cached_prefix_tokens=message.cached_prefix_tokens,
        codec_padding_samples=message.codec_padding_samples,
        time_to_first_audible_seconds=_optional_seconds(message, "time_to_first_audible"),
        text_to_first_audible_seconds=_optional_seconds(message, "text_to_first_audible"),
        trimmed_samples=message.trimmed_samples,
        continuations=message.continuations,
        words=words(message.words),
    )


def speech(
    chunks: Iterable[results.Chunk],
    header: results.Header,
    summary: results.Summary | None,
    warnings: tuple[results.SpeechWarning, ...] = (),
    words: tuple[results.WordTime, ...] = (),
) -> results.Speech:
    chunks = list(chunks)
    dtype = np.float32 if header.encoding == Encoding.PCM_F32LE else np.int16
    pcm = chunks if header.encoding in PCM else []
    return results.Speech(
        samples=np.concatenate([np.zeros(0, dtype), *(chunk.samples for chunk in pcm)]),
        sample_rate=header.sample_rate,
        header=header,
        summary=summary,
        warnings=warnings,
        audio=b"" if pcm else b"".join(chunk.audio for chunk in chunks),
        sample_count=sum(chunk.sample_count for chunk in chunks),
        words=words,
    )


def voice(
    message: pb.VoiceHandle,
    preview: results.Speech | None = None,
    auditions: tuple[results.Speech, ...] = (),
    warnings: tuple[results.SpeechWarning, ...] = (),
) -> voices.Voice:
    return voices.Voice(
        id=message.id,
        kind=_name(pb.VoiceKind, message.kind),
        name=message.display_name,
        transcript=message.transcript,
        prompt_seconds=_seconds(message.prompt_duration),
        reference_seconds=_seconds(message.reference_duration),
        prompt_id=message.prompt_id,
        reference_id=message.reference_id,
        labels=dict(message.labels),
        names=_names(message),
        content_digest=message.content_digest,
        model_fingerprint=message.model_fingerprint,
        model=message.model,
        created=_time(message.create_time) if message.HasField("create_time") else None,
        expires=_time(message.expire_time) if message.HasField("expire_time") else None,
        reused=message.reused,
        principal=message.principal,
        lora=message.lora,
        preview=preview,
        auditions=auditions,
        warnings=warnings,
    )


def _names(message: pb.VoiceHandle) -> tuple[voices.VoiceName, ...]:
    if not message.names and message.display_name:  # an older server has sent it
        return (voices.VoiceName(message.display_name, dict(message.labels)),)
    return tuple(voices.VoiceName(one.display_name, dict(one.labels)) for one in message.names)


def latents(message: pb.EncodeLatentsResponse, request_id: str) -> voices.Latents:
    inner = message.latents
    return voices.Latents(
        data=np.frombuffer(inner.data, "<f4").reshape(-1, inner.feat_dim),
        model_fingerprint=inner.model_fingerprint,
        seconds=_seconds(message.audio_duration),
        warnings=warnings(message.warnings, request_id),
    )


SAMPLING_OPTIONS = {"inference_timesteps": "timesteps"}  # options with another name than their field
# Servers that do not say have all of them.
_ALL_KINDS = (pb.VOICE_KIND_PROMPT, pb.VOICE_KIND_REFERENCE, pb.VOICE_KIND_HIFI)


def served_model(message: pb.Model) -> ServedModel:
    return ServedModel(
        name=message.name,
        is_default=message.is_default,
        serving=message.serving,
        architecture=message.architecture,
        model_fingerprint=message.model_fingerprint,
        output_sample_rate=message.output_sample_rate_hz,
        presets=tuple(message.presets),
        default_voice=message.default_voice,
        languages=tuple(message.languages),
        engines=message.engines,
        engines_ready=message.engines_ready,
    )


def model_info(message: pb.GetModelInfoResponse) -> ModelInfo:
    limits = message.limits
    kinds = message.voice_kinds if message.voice_kinds or message.sampling_fields else _ALL_KINDS
    return ModelInfo(
        model=message.model,
        architecture=message.architecture,
        model_fingerprint=message.model_fingerprint,
        input_sample_rate=message.input_sample_rate_hz,
        output_sample_rate=message.output_sample_rate_hz,
        feat_dim=message.feat_dim,
        patch_size=message.patch_size,
        samples_per_step=message.samples_per_step,
        encodings=tuple(_name(pb.AudioEncoding, number) for number in message.output_encodings),
        sample_rates=tuple(message.output_sample_rates_hz),
        inference_timesteps=tuple(message.inference_timesteps),
        default_cfg_value=message.default_sampling.cfg_value,
        default_timesteps=message.default_sampling.inference_timesteps,
        sampling_fields=tuple(SAMPLING_OPTIONS.get(name, name) for name in message.sampling_fields),
        default_sampling={
            SAMPLING_OPTIONS.get(field.name, field.name): float(f"{value:.6g}")  # the wire has 32 bits
            for field, value in message.default_sampling.ListFields()
        },
        default_max_silence=_optional_seconds(message, "default_max_silence"),
        max_model_len=message.max_model_len,
        max_slots=message.max_slots,
        device=message.device,
        dtype=message.dtype,
        codec_dtype=message.codec_dtype,
        presets=tuple(message.presets),
        default_voice=message.default_voice,
        languages=tuple(message.languages),
        voice_kinds=tuple(_name(pb.VoiceKind, number) for number in kinds),
        styles=not message.no_styles,
        speech_languages=tuple(message.speech_languages),
        text_streaming=message.text_streaming,
        needs_voice=message.needs_voice,
        loras=tuple(message.loras),
        server_version=message.server_version,
        limits=Limits(
            max_request_message_bytes=limits.max_request_message_bytes,
            max_buffered_text_chars=limits.max_buffered_text_chars,
            max_segment_chars=limits.max_segment_chars,
            max_prompt_seconds=_seconds(limits.max_prompt_duration),
            max_reference_seconds=_seconds(limits.max_reference_duration),
            max_upload_bytes=limits.max_upload_bytes,
            max_inline_audio_bytes=limits.max_inline_audio_bytes,
        ),
    )


@lru_cache(maxsize=256)  # a newer server may know more names
def _name(enum: Any, number: int) -> str:
    """FINISH_REASON_MAX_STEPS -> max_steps; empty for unspecified, the number for one that a newer server knows."""
    if number not in enum.values():
        return str(number)
    prefix = enum.Name(0).removesuffix("UNSPECIFIED")
    return "" if number == 0 else enum.Name(number).removeprefix(prefix).lower()


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _optional_seconds(message: pb.StreamSummary | pb.GetModelInfoResponse, field: str) -> float | None:
    return _seconds(getattr(message, field)) if message.HasField(field) else None


def _time(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime(tzinfo=UTC)
