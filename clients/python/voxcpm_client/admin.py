"""The calls of a client whose target is the admin port of a server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from voxcpm_client.messages.server_stats import ServerStats, server_stats
from voxcpm_client.transport.connection import Connection
from voxcpm_client.transport.retry import Attempts
from voxcpm_client.values.arguments import check_string, check_strings
from voxcpm_grpc.v1 import admin_pb2 as pb

STATS_TIMEOUT = 10.0  # seconds, for calls that only read


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredLora:
    """A LoRA adapter that requests may choose."""

    name: str
    """Name, for the option `lora`."""

    model: str
    """Name of its model."""

    source: str
    """Source as it was registered, or the directory of the server's settings."""

    fingerprint: str
    """Hash of its files. Adapters of equal content have the same."""

    streams: int
    """Streams of the server process with this admin port that hold the adapter."""

    engines: int
    """Engines that have it."""


class AdminCalls:
    """The calls of `AsyncClient` for operators. None of them is repeated.

    If the server authenticates its callers, they raise PermissionDenied unless the caller is an admin.
    """

    _connection: Connection
    _timeout: float | None

    async def server_stats(self) -> ServerStats:
        """Read the statistics of a server whose admin port is the target of this client. Is not repeated."""
        answer = await self._admin("GetStats", pb.GetStatsRequest(), limit=STATS_TIMEOUT)
        return server_stats(answer.stats)

    async def register_lora(
        self, name: str, source: str, *, sha256: str | None = None, model: str = ""
    ) -> RegisteredLora:
        """Let a server whose admin port is the target of this client fetch a LoRA adapter and speak with it on request.

        Returns when requests may choose it. Is not repeated. Raises AlreadyExists, InvalidArgument if the adapter does
        not fit the model, and FailedPrecondition if the server does not allow the source.

        Args:
            name: Name for the option `lora`.
            source: Directory of the server, `hf://OWNER/NAME[@REVISION]` or URL, below one of `admin.lora_sources`.
            sha256: SHA-256 of the weights, in hexadecimal digits. Default: `None`, any weights.
            model: Name of the model. Default: `""`, the default model.
        """
        for argument, value in (("name", name), ("source", source), ("model", model)):
            check_string(value, argument)
        check_strings(sha256=sha256)
        request = pb.RegisterLoraRequest(name=name, source=source, sha256=sha256, model=model)
        return _lora((await self._admin("RegisterLora", request)).lora)

    async def list_loras(self, model: str = "") -> list[RegisteredLora]:
        """List the LoRA adapters of a server whose admin port is the target of this client. Is not repeated.

        Args:
            model: Name of a model. Default: `""`, all models.
        """
        check_string(model, "model")
        answer = await self._admin("ListLoras", pb.ListLorasRequest(model=model), limit=STATS_TIMEOUT)
        return [_lora(lora) for lora in answer.loras]

    async def unregister_lora(self, name: str, model: str = "") -> None:
        """Withdraw a LoRA adapter from new streams of a server whose admin port is the target of this client.

        The server frees it after the last stream that has chosen it. Is not repeated. Raises NotFound.

        Args:
            name: Name of the adapter.
            model: Name of the model. Default: `""`, the default model.
        """
        check_string(name, "name")
        check_string(model, "model")
        await self._admin("UnregisterLora", pb.UnregisterLoraRequest(name=name, model=model))

    async def drain_engine(self, engine: str, *, restart: bool = False) -> None:
        """Take an engine out of service, on a server whose admin port is the target of this client.

        Other engines of its model go on with its streams. Returns when its process has ended. Is not repeated. Raises
        NotFound, and FailedPrecondition if no other engine takes requests.

        Args:
            engine: Name of the engine, as `server_stats` has it.
            restart: Start it again at once, with what its files are by then. Default: `False`.
        """
        check_string(engine, "engine")
        await self._admin("DrainEngine", pb.DrainEngineRequest(engine=engine, restart=restart))

    async def start_engine(self, engine: str) -> None:
        """Start an engine again that `drain_engine` took out of service. Returns before it is ready. Raises NotFound.

        Args:
            engine: Name of the engine.
        """
        check_string(engine, "engine")
        await self._admin("StartEngine", pb.StartEngineRequest(engine=engine))

    async def _admin(self, method: str, request: Any, *, limit: float = math.inf) -> Any:
        """The response of a call that may take `limit` seconds, and not longer than all calls of the client."""
        seconds = min(limit, math.inf if self._timeout is None else self._timeout)
        attempts = Attempts(timeout=None if seconds == math.inf else seconds, retries=0, retry_seconds=0.0)
        return await self._connection.unary(method, request, attempts, admin=True)


def _lora(message: pb.LoraInfo) -> RegisteredLora:
    return RegisteredLora(
        name=message.name,
        model=message.model,
        source=message.source,
        fingerprint=message.fingerprint,
        streams=message.streams,
        engines=message.engines,
    )
