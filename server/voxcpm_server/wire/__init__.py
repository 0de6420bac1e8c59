"""Between protobuf and values: nothing else touches the fields of messages."""

from voxcpm_server.wire.replies import (
    chunk,
    flush_done,
    handle,
    header,
    interrupted,
    latents,
    model_info,
    segment_event,
    summary,
    voice_page,
)
from voxcpm_server.wire.requests import RequestReader, listing, request_id, style_with_prompt

__all__ = [
    "RequestReader",
    "chunk",
    "flush_done",
    "handle",
    "header",
    "interrupted",
    "latents",
    "listing",
    "model_info",
    "request_id",
    "segment_event",
    "style_with_prompt",
    "summary",
    "voice_page",
]
