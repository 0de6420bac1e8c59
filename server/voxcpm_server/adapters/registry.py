"""LoRA adapters that admins register and unregister while the server runs."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import msgspec

from voxcpm_grpc.errors import Reason, Unavailable
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.request import Adapter
from voxcpm_server.adapters.sources import LoraSources
from voxcpm_server.models import Model, Models
from voxcpm_server.operation.host import Fronts
from voxcpm_server.values.admin import RegisteredLora, Registration

log = logging.getLogger(__name__)

TOPIC = "LoRA adapters"  # questions between fronts have this topic
# Only so many run at the same time, because each takes a thread that other work needs, too; the others wait.
MAX_FETCHES = 2
START_SECONDS = 5.0  # seconds to wait, for a caller who comes before the server is ready


class LoraRegistry:
    """Registers adapters with the models of a server, from the sources that it allows.

    Every method raises Unavailable before `serve`, and NotFound for an unknown model.
    """

    def __init__(self, sources: LoraSources, fronts: Fronts | None = None) -> None:
        self._sources = sources
        self._fronts = fronts
        if fronts is not None:
            fronts.answer(TOPIC, self._answer)
        self._models: Models | None = None
        self._fetches = asyncio.Semaphore(MAX_FETCHES)

    def serve(self, models: Models) -> None:
        """Use these models from now on."""
        self._models = models

    async def register(self, wanted: Registration, caller: str) -> RegisteredLora:
        """Fetch an adapter, and return when streams may choose it. The log has a line with the name of the caller.

        Raises AlreadyExists, InvalidRequest, FailedPrecondition and Unavailable; nothing is registered then.
        """
        model = self._served().find(wanted.model)
        model.pool.info.require("lora", "model")
        model.pool.adapters.require_new(wanted.name)  # a long download follows
        async with self._fetches:
            directory = await self._sources.fetch(wanted.source, wanted.sha256)
        adapter = await model.pool.adapters.register(wanted.name, wanted.source, directory)
        log.info(LogLine("a LoRA adapter is registered", **_names(adapter, model.name), caller=caller))
        return _registered(model, adapter)

    async def list(self, model: str) -> list[RegisteredLora]:
        """The adapters of a model, or of all for an empty name, with their streams through all fronts."""
        models = self._served()
        found = [models.find(model)] if model else models
        elsewhere: Counter[str] = Counter()
        if self._fronts is not None:
            for answer in (await self._fronts.ask_others(TOPIC)).values():
                elsewhere.update(msgspec.msgpack.decode(answer, type=dict[str, int]))
        return [
            _registered(one, adapter, elsewhere[_key(one, adapter)])
            for one in found
            for adapter in one.pool.adapters.registered
        ]

    async def _answer(self) -> bytes:
        """The streams of this front with each adapter of each model."""
        streams = {
            _key(one, adapter): one.streams_with(adapter)
            for one in self._models or ()
            for adapter in one.pool.adapters.registered
        }
        return msgspec.msgpack.encode(streams)

    async def unregister(self, name: str, model: str, caller: str) -> None:
        """Withdraw an adapter from new streams. Raises NotFound."""
        found = self._served().find(model)
        adapter = await found.pool.adapters.unregister(name)
        log.info(LogLine("a LoRA adapter is unregistered", **_names(adapter, found.name), caller=caller))

    def _served(self) -> Models:
        if self._models is None:
            raise Unavailable(
                "the server is not ready yet; try again", retry_after=START_SECONDS, reason=Reason.NOT_READY
            )
        return self._models


def _names(adapter: Adapter, model: str) -> dict[str, str]:
    return {"lora": adapter.name, "model": model, "source": adapter.source, "fingerprint": adapter.fingerprint}


def _key(model: Model, adapter: Adapter) -> str:
    """The name of an adapter of a model between fronts."""
    return f"{model.name}/{adapter.name}"


def _registered(model: Model, adapter: Adapter, elsewhere: int = 0) -> RegisteredLora:
    return RegisteredLora(
        adapter,
        model.name,
        streams=model.streams_with(adapter) + elsewhere,
        engines=model.engines_with(adapter),
    )
