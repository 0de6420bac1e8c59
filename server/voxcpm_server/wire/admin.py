"""LoRA adapters and engines of the admin service: from requests to values, and from values to messages."""

from __future__ import annotations

from collections.abc import Iterable

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.settings.models import LORA_NAME
from voxcpm_grpc.v1 import admin_pb2 as pb
from voxcpm_server.values.admin import RegisteredLora, Registration

MAX_SHOWN = 80  # characters of a name in an error


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


def engine(request: pb.DrainEngineRequest | pb.StartEngineRequest) -> str:
    """The name of the engine. Raises InvalidRequest."""
    if not request.engine:
        raise InvalidRequest("engine is empty; name one of GetStats, such as 'engine cuda:0'", field="engine")
    return request.engine


def drained() -> pb.DrainEngineResponse:
    return pb.DrainEngineResponse()


def started() -> pb.StartEngineResponse:
    return pb.StartEngineResponse()
