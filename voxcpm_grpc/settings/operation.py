"""Settings of metrics, of traces and of the admin service."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from voxcpm_grpc.network.addresses import listen_address
from voxcpm_grpc.settings.types import Frozen, checked


class OwnPort(Frozen):
    """A service on a port of its own, if `listen` is set."""

    listen: str | None = None

    @field_validator("listen")
    @classmethod
    def _check(cls, listen: str | None) -> str | None:
        if listen is not None:
            checked(listen_address, listen)
        return listen


class MetricsSettings(OwnPort):
    """Metrics for Prometheus."""

    listen: str | None = Field(
        default=None,
        description="address and port of the page /metrics, such as 0.0.0.0:9464, for all fronts together; default: "
        "no metrics",
    )
    orca: bool = Field(default=False, description="no effect; it was for load reports of ORCA")


class AdminSettings(OwnPort):
    """Statistics and LoRA adapters for operators."""

    listen: str | None = Field(
        default=None,
        description="address and port of VoxCPMAdminService, which `voxcpm-grpc top` uses, such as 127.0.0.1:50052, "
        "for all fronts together; tls and auth apply to it; default: no admin service",
    )
    lora_sources: tuple[str, ...] = Field(
        default=(),
        description="places from which admins may register LoRA adapters while the server runs, with what is below "
        "them: directories, hf://, hf://OWNER/ or hf://OWNER/NAME, and URLs of fsspec such as s3://BUCKET/FOLDER; "
        "default: none, no registration",
    )
    lora_cache: Path | None = Field(
        default=None,
        description="folder for adapters that such a registration downloads; engines read them there, so on Ray all "
        "nodes must see it; default: .cache/voxcpm-grpc/loras in the home directory",
    )

    @model_validator(mode="after")
    def _complete(self) -> AdminSettings:
        if self.lora_sources and self.listen is None:
            raise PydanticCustomError(
                "admin", "admin.lora_sources needs admin.listen, the port of the service that registers adapters"
            )
        return self


class TracingSettings(Frozen):
    """Traces for OpenTelemetry."""

    endpoint: str | None = Field(
        default=None,
        description="collector that receives traces in OTLP over gRPC, such as http://127.0.0.1:4317; https:// for "
        "TLS; default: no traces",
    )
    sample_ratio: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="share of the calls that are traced, of those whose caller has not decided it; default: as "
        "OTEL_TRACES_SAMPLER says, otherwise all",
    )

    @field_validator("endpoint")
    @classmethod
    def _check(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not re.fullmatch(r"https?://[^/\s]+/?", endpoint):
            raise PydanticCustomError("endpoint", "it must be http:// or https:// with a host and a port")
        return endpoint
