"""The configuration of a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_LISTEN = "127.0.0.1:8000"
DEFAULT_TIMEOUT = 600.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConnection:
    """The connection to the gRPC server. The fields are the arguments of `voxcpm_client.AsyncClient`.

    timeout: longest duration of a call in seconds
    retry_seconds: time in which a failed call is repeated; 0 passes each refusal to the caller at once
    """

    target: str
    tls: bool = False
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    api_key: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout: float = DEFAULT_TIMEOUT
    retry_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The configuration of a gateway.

    voice_aliases: names of voices that callers may use, with the voices that they stand for
    allowed_hosts: names by which callers may reach the gateway beside its addresses and localhost, such as
        tts.example; `*.NAME` are those directly below NAME, and `*` all
    allowed_origins: origins of other web pages that may call the gateway, such as https://app.example; `*` for all
    allow_ref_audio_urls: True lets `ref_audio` be the https address of a recording, which the gateway then fetches
    max_body_bytes: largest body of a request
    max_bodies_bytes: bytes of all bodies that are in memory at the same time
    head_seconds: longest time from the first byte of a request, or from the connection, to the end of its headers
    max_waiting: connections that have not sent a whole request; 0 for as many as there is room for
    read_seconds: longest pause of a client that sends a request
    write_seconds: longest time for which a client may leave the response unread
    metrics_folder: folder in which gateways on one port keep their metrics, if there are others. The process must have
        its name in PROMETHEUS_MULTIPROC_DIR from the start
    grpc_port: port of the gRPC server on this host, for programs that the page shows; 0 for that of `server`, if it is
        on this host
    grpc_tls: True if that port is encrypted
    """

    server: ServerConnection
    voice_aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allow_ref_audio_urls: bool = False
    max_body_bytes: int = 48 * MIB
    max_bodies_bytes: int = 256 * MIB
    head_seconds: float = 30.0
    max_waiting: int = 0
    read_seconds: float = 30.0
    write_seconds: float = 300.0
    metrics_folder: Path | None = None
    grpc_port: int = 0
    grpc_tls: bool = False
