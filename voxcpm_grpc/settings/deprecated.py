"""Settings of the last release that still work, and that the next one refuses with the same remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel

REMEDIES: Mapping[str, str] = {
    "keepalive_timeout_seconds": "leave it out; a client has 10 s to answer a ping",
    "max_connection_age_grace_seconds": "leave it out; limits.stream_idle_seconds and limits.write_seconds end calls "
    "that nobody uses",
    "engine.attention": "leave it out; an engine takes flash-attn if it is installed, else Triton, and on a CPU "
    "plain PyTorch",
    "engine.page_size": "leave it out; a page of the KV cache has 16 positions",
    "engine.prefill_tokens": "leave it out; an engine chooses it by its device and by the requests that wait",
    "engine.loras": "name the adapters with lora",
    "engine.recorded_noise": "leave it out; a seed makes audio repeatable",
    "supervision.restart_seconds": "leave it out; pauses between starts of an engine grow to 30 s",
    "supervision.restart_limit": "leave it out; an engine is given up after 10 failed starts in a row",
    "limits.max_inline_audio_bytes": "leave it out; a recording in a stream has 6 MiB at most, an upload "
    "limits.max_upload_bytes",
    "limits.max_transcript_chars": "leave it out; a transcript has 2,000 characters at most",
    "limits.max_style_chars": "leave it out; a style has 500 characters at most",
    "limits.max_carry_seconds": "leave it out; 20 s of earlier speech condition the next segment",
    "limits.upload_idle_seconds": "leave it out; an upload is refused after 30 s without a message, and "
    "limits.upload_seconds limits all of it",
    "voices.timeout_seconds": "leave it out; the voice store has 10 s to answer",
    "voices.sweep_seconds": "leave it out; expired voices are removed every 10 minutes",
    "metrics.orca": "leave it out, it has no effect any more; weigh servers with the metrics "
    "voxcpm_engine_slots_used, voxcpm_engine_slots and voxcpm_engine_requests_waiting",
    "tracing.sample_ratio": "set OTEL_TRACES_SAMPLER=parentbased_traceidratio and OTEL_TRACES_SAMPLER_ARG",
    "http.timeout_seconds": "leave it out; a call of the gateway takes 600 s at most. `voxcpm-grpc gateway --timeout` "
    "serves HTTP with another limit",
}
"""The remedy for each setting, by its key."""


def deprecations(settings: BaseModel) -> Iterator[str]:
    """A warning for each deprecated setting that was given."""
    for key, remedy in REMEDIES.items():
        section, _, name = key.rpartition(".")
        if name in (getattr(settings, section) if section else settings).model_fields_set:
            yield f"{key} is deprecated, and the next version refuses it: {remedy}"
