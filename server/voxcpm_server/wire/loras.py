"""LoRA adapters of the admin service: from requests to values, and from values to messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.request import Adapter
from voxcpm_grpc.settings.models import LORA_NAME
from voxcpm_grpc.v1 import admin_pb2 as pb

MAX_SHOWN = 80  # characters of a name in an error


@dataclass(frozen=True, slots=True)
class Registration:
    """A request to register an adapter.

    sha256: of lora_weights.safetensors, not checked yet; None if any content will do
    model: name of the model; empty for the default one
    """

    name: str
    source: str
    sha256: str | None
    model: str


@dataclass(frozen=True, slots=True)
class RegisteredLora:
    """An adapter that requests may choose.

    streams: of this process, that speak with it
    engines: that have read it
    """

    adapter: Adapter
    model: str
    streams: int
    engines: int


def registration(request: pb.RegisterLoraRequest) -> Registration:
    """Raises InvalidRequest."""
    if not LORA_NAME.fullmatch(request.name):
        raise InvalidRequest(
            f"name is {request.name[:MAX_SHOWN]!r}; it must have 1 to 64 letters of ASCII, digits, '_', '-' and '.', "
            "and begin with a letter or a digit",
            field="name",
        )
    sha256 = request.sha256 if request.HasField("sha256") else None
    return Registration(request.name, request.source, sha256, request.model)


def name_and_model(request: pb.UnregisterLoraRequest) -> tuple[str, str]:
    """The name of the adapter, and of its model; empty for the default one. Raises InvalidRequest."""
    if not request.name:
        raise InvalidRequest("name is empty; name the adapter to unregister", field="name")
    return request.name, request.model


def model(request: pb.ListLorasRequest) -> str:
    """The name of the model; empty for all."""
    return request.model


def registered(lora: RegisteredLora) -> pb.RegisterLoraResponse:
    return pb.RegisterLoraResponse(lora=_lora(lora))


def listing(loras: Iterable[RegisteredLora]) -> pb.ListLorasResponse:
    return pb.ListLorasResponse(loras=map(_lora, loras))


def unregistered() -> pb.UnregisterLoraResponse:
    return pb.UnregisterLoraResponse()


def _lora(lora: RegisteredLora) -> pb.LoraInfo:
    return pb.LoraInfo(
        name=lora.adapter.name,
        model=lora.model,
        source=lora.adapter.source,
        fingerprint=lora.adapter.fingerprint,
        streams=lora.streams,
        engines=lora.engines,
    )
