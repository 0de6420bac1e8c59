"""Settings of the HTTP gateway beside a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from voxcpm_grpc.network.addresses import listen_address
from voxcpm_grpc.network.web_names import allowed_host, allowed_origin
from voxcpm_grpc.settings.operation import OwnPort
from voxcpm_grpc.settings.types import Seconds, checked


class HttpSettings(OwnPort):
    """The HTTP gateway."""

    listen: str | None = Field(
        default=None,
        description="address and port of HTTP, such as 127.0.0.1:8000: OpenAI's speech API, the API of the older "
        "VoxCPM services and a web page; --http is a short form; several fronts share the port, or each listens on the "
        "next one, as front_ports says; default: no HTTP",
    )
    voice_aliases: tuple[str, ...] = Field(
        default=(),
        description="names by which callers of HTTP may ask for voices, such as alloy=miles,nova=ref_...; OpenAI's "
        "names without an alias stand for the presets of the model",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="names by which callers may reach HTTP, such as tts.example, beside its IP addresses, localhost "
        "and the names of tls.cert; *.example.com for all directly below example.com; * for all names, which lets "
        "pages of any site in by DNS rebinding",
    )
    allowed_origins: tuple[str, ...] = Field(
        default=(),
        description="web pages of other origins that may call, such as https://app.example; * for all",
    )
    allow_ref_audio_urls: bool = Field(
        default=False,
        description="fetch the recording if ref_audio of a request is an https URL of a public host",
    )
    timeout_seconds: Seconds = Field(default=600.0, description="longest duration of a call that the gateway makes")

    @field_validator("voice_aliases")
    @classmethod
    def _pairs(cls, aliases: tuple[str, ...]) -> tuple[str, ...]:
        if not all(name and voice for name, _, voice in (alias.partition("=") for alias in aliases)):
            raise PydanticCustomError("voice_aliases", "each must be NAME=VOICE, such as alloy=miles")
        return aliases

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(checked(allowed_host, host) for host in hosts)

    @field_validator("allowed_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(checked(allowed_origin, origin) for origin in origins)

    def of_front(self, number: int) -> HttpSettings:
        """The settings of a front, counted from 0, of several with ports of their own."""
        if self.listen is None:
            return self
        first = listen_address(self.listen)
        return self.model_copy(update={"listen": str(replace(first, port=first.port and first.port + number))})

    @property
    def aliases(self) -> Mapping[str, str]:
        """The voices by the names of callers."""
        return {name: voice for name, _, voice in (alias.partition("=") for alias in self.voice_aliases)}
