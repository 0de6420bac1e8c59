"""Between protobuf and values: nothing else touches the fields of messages."""

from voxcpm_server.convert.replies import chunk, handle, latents, model_info, voice_page
from voxcpm_server.convert.requests import RequestReader, listing, request_id, style_with_prompt

__all__ = [
    "RequestReader",
    "chunk",
    "handle",
    "latents",
    "listing",
    "model_info",
    "request_id",
    "style_with_prompt",
    "voice_page",
]
