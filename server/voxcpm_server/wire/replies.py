"""What callers are told, as messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from voxcpm_grpc import __version__
from voxcpm_grpc.audio import SAMPLE_RATES, AudioFormat
from voxcpm_grpc.request import ModelInfo, Sampling
from voxcpm_grpc.settings.schema import LimitSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.voices.voice import Voice
from voxcpm_server.wire import outputs
from voxcpm_server.wire.enums import CUT_VALUES, ENCODING_VALUES, EVENT_VALUES, KIND_VALUES, REASON_VALUES
from voxcpm_server.wire.requests import default_timesteps


def chunk(
    audio: bytes, *, sequence: int, offset: int, samples: int, turn: int, segment: int, **extras: Any
) -> pb.AudioChunk:
    """A message of a stream. `extras` are its other fields, made by the functions below."""
    return pb.AudioChunk(
        audio=audio,
        sequence=sequence,
        offset_samples=offset,
        sample_count=samples,
        turn_index=turn,
        segment_index=segment,
        **extras,
    )


def flush_done(tag: str, at: int) -> pb.FlushDone:
    return pb.FlushDone(tag=tag, at_samples=at)


def interrupted(tag: str, sent: int) -> pb.Interrupted:
    return pb.Interrupted(tag=tag, sent_samples=sent)


def handle(voice: Voice, reused: bool = False) -> pb.VoiceHandle:
    return pb.VoiceHandle(
        id=voice.id,
        kind=KIND_VALUES[voice.kind],
        display_name=voice.display_name,
        content_digest=voice.id.partition("_")[2],
        model_fingerprint=voice.fingerprint,
        transcript=voice.transcript,
        prompt_duration=_duration(voice.prompt_seconds) if voice.prompt_seconds else None,
        reference_duration=_duration(voice.reference_seconds) if voice.reference_seconds else None,
        prompt_id=voice.prompt_id,
        reference_id=voice.reference_id,
        create_time=_timestamp(voice.created) if voice.created else None,
        expire_time=_timestamp(voice.expires) if voice.ttl else None,
        labels=voice.labels,
        reused=reused,
    )


def voice_page(voices: Iterable[Voice], token: str) -> pb.ListVoicesResponse:
    return pb.ListVoicesResponse(handles=[handle(voice) for voice in voices], next_page_token=token)


def latents(array: np.ndarray, fingerprint: str, seconds: float) -> pb.EncodeLatentsResponse:
    """float32 [patches, P, D]"""
    flat = pb.Latents(
        data=np.ascontiguousarray(array, "<f4").tobytes(), feat_dim=array.shape[-1], model_fingerprint=fingerprint
    )
    return pb.EncodeLatentsResponse(latents=flat, audio_duration=_duration(seconds))


def model_info(
    info: ModelInfo, limits: LimitSettings, presets: Sequence[str], default_voice: str
) -> pb.GetModelInfoResponse:
    sampling = Sampling()
    return pb.GetModelInfoResponse(
        model=info.name,
        model_fingerprint=info.fingerprint,
        input_sample_rate_hz=info.input_sample_rate,
        output_sample_rate_hz=info.output_sample_rate,
        feat_dim=info.latent_dim,
        patch_size=info.patch_size,
        samples_per_step=info.samples_per_step,
        output_encodings=sorted(ENCODING_VALUES.values()),
        output_sample_rates_hz=SAMPLE_RATES,
        limits=pb.Limits(
            max_request_message_bytes=limits.max_message_bytes,
            max_buffered_text_chars=limits.max_text_chars,
            max_segment_chars=limits.max_segment_chars,
            max_prompt_duration=_duration(limits.max_prompt_seconds),
            max_reference_duration=_duration(limits.max_reference_seconds),
            max_upload_bytes=limits.max_upload_bytes,
            max_inline_audio_bytes=limits.max_inline_audio_bytes,
        ),
        default_sampling=pb.Sampling(
            cfg_value=sampling.cfg_value,
            temperature=sampling.temperature,
            inference_timesteps=default_timesteps(info),
            min_steps=sampling.min_steps,
        ),
        server_version=__version__,
        architecture=info.architecture,
        inference_timesteps=info.timesteps,
        max_model_len=info.max_model_len,
        max_slots=info.max_slots,
        device=info.device,
        dtype=info.dtype,
        codec_dtype=info.codec_dtype,
        presets=presets,
        default_voice=default_voice,
    )


def header(header: outputs.Header) -> pb.StreamHeader:
    return pb.StreamHeader(
        request_id=header.request_id,
        format=_format(header.format),
        model=header.model,
        model_fingerprint=header.fingerprint,
        seed=header.seed,
        voice=header.voice,
        queue_time=_duration(header.queue),
    )


def _format(format: AudioFormat) -> pb.AudioFormat:
    return pb.AudioFormat(encoding=ENCODING_VALUES[format.encoding], sample_rate_hz=format.sample_rate)


def segment_event(event: outputs.SegmentEvent) -> pb.SegmentEvent:
    segment = event.segment
    return pb.SegmentEvent(
        kind=EVENT_VALUES[event.kind],
        turn_index=segment.turn,
        segment_index=segment.index,
        at_samples=event.at,
        text=segment.text,
        input_start=segment.start,
        input_end=segment.end,
        finish_reason=REASON_VALUES[event.reason],
        cut_reason=CUT_VALUES[segment.cut],
    )


def summary(summary: outputs.Summary) -> pb.StreamSummary:
    return pb.StreamSummary(
        finish_reason=REASON_VALUES[summary.reason],
        total_samples=summary.samples,
        total_bytes=summary.bytes,
        turns=summary.turns,
        segments=summary.segments,
        input_chars=summary.chars,
        generated_steps=summary.steps,
        queue_time=_duration(summary.queue),
        time_to_first_audio=_duration(summary.first_audio),
        engine_time=_duration(summary.engine),
        wall_time=_duration(summary.wall),
        cached_prefix_tokens=summary.cached_tokens,
        text_to_first_audio=_duration(summary.text_to_audio),
    )


def _duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMilliseconds(round(seconds * 1e3))
    return stamp
