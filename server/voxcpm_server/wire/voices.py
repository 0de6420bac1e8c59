"""Requests for stored voices, and the properties of voices: from messages to values. All raise InvalidRequest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.request import Adapter
from voxcpm_grpc.settings.types import MAX_SECONDS
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values import inputs
from voxcpm_server.values.inputs import MAX_NAME
from voxcpm_server.values.voice import VoiceKind
from voxcpm_server.wire.enums import KINDS
from voxcpm_server.wire.fields import inside, read_enum, read_seconds, refuse_control_characters

MAX_LABELS, MAX_LABEL = 32, 200


def voice_id(request: pb.GetVoiceRequest) -> str:
    """The id or name of the voice."""
    return request.id


def deletion(request: pb.DeleteVoiceRequest) -> tuple[str, bool, bool]:
    """The id or name of the voice, `cascade` and `allow_missing`."""
    return request.id, request.cascade, request.allow_missing


def model(request: Any) -> str:
    """The name of the model that a request for a voice, or for a model, is about; empty for none."""
    return request.model


def listing(request: pb.ListVoicesRequest) -> tuple[VoiceKind | None, dict[str, str], int, str]:
    """Kind, labels, page size and page token."""
    return read_enum(KINDS, request.kind, "kind"), dict(request.labels), request.page_size, request.page_token


def update(request: pb.UpdateVoiceRequest) -> tuple[str, inputs.VoiceChange]:
    """The voice and its change, whose LoRA adapter is not checked: the voice has the model."""
    name = request.display_name if request.HasField("display_name") else None
    change = inputs.VoiceChange(
        display_name=None if name is None else _display_name(name, "display_name"),
        labels=_labels(request.labels.labels, "labels") if request.HasField("labels") else None,
        ttl=_ttl(request, "ttl"),
        lora=request.lora if request.HasField("lora") else None,
    )
    if change == inputs.VoiceChange():
        raise InvalidRequest("there is nothing to change; set display_name, labels, ttl or lora", field="display_name")
    return request.id, change


def options(options: pb.VoiceOptions, adapter: Callable[[pb.VoiceOptions], Adapter | None]) -> inputs.VoiceOptions:
    """The properties of a voice that an upload sets. `adapter` raises the errors of the adapter that they name."""
    with inside("options"):
        adapter(options)
    return inputs.VoiceOptions(
        display_name=_display_name(options.display_name, "options.display_name"),
        labels=_labels(options.labels, "options.labels"),
        ttl=_ttl(options, "options.ttl"),
        lora=options.lora if options.HasField("lora") else None,
    )


def _display_name(name: str, field: str) -> str:
    if len(name) > MAX_NAME:
        raise InvalidRequest(f"display_name has {len(name)} characters and the limit is {MAX_NAME}", field=field)
    refuse_control_characters("display_name", name, field)
    return name


def _labels(given: Mapping[str, str], field: str) -> dict[str, str]:
    if len(given) > MAX_LABELS or any(len(text) > MAX_LABEL for pair in given.items() for text in pair):
        raise InvalidRequest(
            f"the limit is {MAX_LABELS} labels, with keys and values of at most {MAX_LABEL} characters", field=field
        )
    for text in (*given, *given.values()):
        refuse_control_characters("labels", text, field)
    return dict(given)


def _ttl(message: Any, field: str) -> float | None:
    ttl = read_seconds(message, "ttl", field)
    if ttl is not None and ttl > MAX_SECONDS:
        raise InvalidRequest(f"ttl is {ttl:.0f} s and the limit is {MAX_SECONDS:.0f} s", field=field)
    return ttl
