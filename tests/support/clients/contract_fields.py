"""The fields of requests, by which errors name what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor

from tools.qwen3_checkpoint_layout import SPEAKERS
from voxcpm_grpc.audio import Encoding
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.v1 import admin_pb2, tts_pb2

FILES = (tts_pb2.DESCRIPTOR, admin_pb2.DESCRIPTOR)
REQUESTS: tuple[Descriptor, ...] = tuple(
    method.input_type for file in FILES for service in file.services_by_name.values() for method in service.methods
)
NAMES = {
    *(
        part.name
        for file in FILES
        for message in file.message_types_by_name.values()
        for part in (*message.fields, *message.oneofs)
    ),
    *Settings.model_fields,
    *Encoding,
    *SPEAKERS,  # names of voices
}
# A word with an underscore outside quotes, which is no part of a setting (limits.write_seconds), a file or an id.
NAMED = re.compile(r"(?<![\w./`'-])[a-z]+(?:_[a-z0-9]+)+(?![\w./'(-])")
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\b(?:prm|ref|hifi|spk|voxcpm)_\w+")


def is_field(path: str) -> bool:
    """True if a request has this field, such as `config.turn.lora` or `config.lexicon[2]`; the last may be a oneof."""
    parts = [re.sub(r"\[\d+\]$", "", part) for part in path.split(".")]
    return any(_has(request, parts) for request in REQUESTS)


def _has(message: Descriptor | None, parts: list[str]) -> bool:
    if message is None:
        return False
    name, *rest = parts
    if not rest:
        return name in message.fields_by_name or name in message.oneofs_by_name
    return name in message.fields_by_name and _has(message.fields_by_name[name].message_type, rest)


def foreign_names(text: str) -> Iterator[str]:
    """The names in an error message that look like fields, and are neither fields nor settings nor encodings."""
    return (name for name in NAMED.findall(QUOTED.sub("", text)) if name not in NAMES)
