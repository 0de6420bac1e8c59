"""The parts of a gateway that its routes share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection, Request

from voxcpm_client import AsyncClient, ModelInfo, ServedModel, SpeechError, Unimplemented
from voxcpm_gateway.config import GatewayConfig
from voxcpm_gateway.metrics import GatewayMetrics
from voxcpm_gateway.requests.bodies import BodyLimits
from voxcpm_gateway.requests.callers import KnownCallers, caller_client, caller_metadata
from voxcpm_gateway.speech.voice_names import VoiceNames

MODEL_SECONDS = 30.0  # from this age on the description of the model is asked for again


@dataclass(slots=True)
class GatewayState:
    """The parts of a gateway that its routes share. It is `app.state.gateway`."""

    config: GatewayConfig
    bodies: BodyLimits
    voices: VoiceNames
    metrics: GatewayMetrics
    callers: KnownCallers = field(default_factory=KnownCallers)
    _models: Sequence[ServedModel] = ()
    _infos: dict[str, ModelInfo] = field(default_factory=dict[str, ModelInfo])
    _asked: float = 0.0
    _asking: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    def of(cls, connection: HTTPConnection) -> GatewayState:
        state: GatewayState = connection.app.state.gateway
        return state

    async def check_caller(self, connection: HTTPConnection, key: str = "") -> None:
        """Raises SpeechError for a caller whom the server does not accept, and HttpError for credentials of no use.

        key: as for `caller_metadata`
        """
        credential = caller_metadata(connection, key).get("authorization", "")
        await self.callers.check(caller_client(connection, key), credential)

    @asynccontextmanager
    async def body_of(self, request: Request) -> AsyncIterator[Request]:
        """The request with a body within the limits, which is read only if the server accepts the caller.

        Raises SpeechError and HttpError. The body counts as memory until the end of the block.
        """
        await self.check_caller(request)
        async with self.bodies.limited(request) as limited:
            yield limited

    async def model_info(self, client: AsyncClient, model: str = "") -> ModelInfo:
        """The description of a model of the server, at most a little out of date; the default one for an empty name.

        Raises SpeechError. Use it to interpret a request whose stream the server admits; responses with the description
        itself ask the server, which may refuse the caller.
        """
        if model not in self._infos:
            self._infos[model] = await client.model_info(model)
        self._refresh_soon(client)
        return self._infos[model]

    async def models(self, client: AsyncClient) -> Sequence[ServedModel]:
        """The models of the server, at most a little out of date, as for `model_info`. Raises SpeechError."""
        if not self._models:
            self._models = await served_models(client)
        self._refresh_soon(client)
        return self._models

    def _refresh_soon(self, client: AsyncClient) -> None:
        now = time.monotonic()
        if not self._asked:
            self._asked = now
        elif now > self._asked + MODEL_SECONDS:
            self._asked = now
            task = asyncio.create_task(self._refresh(client))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _refresh(self, client: AsyncClient) -> None:
        with suppress(SpeechError):
            if self._models:
                self._models = await served_models(client)
            for model in list(self._infos):
                self._infos[model] = await client.model_info(model)


async def served_models(client: AsyncClient) -> Sequence[ServedModel]:
    """The models of the server. One that is too old to list them has one. Raises SpeechError."""
    try:
        return await client.list_models()
    except Unimplemented:
        info = await client.model_info()
        return (
            ServedModel(
                name=info.model,
                is_default=True,
                serving=True,
                architecture=info.architecture,
                model_fingerprint=info.model_fingerprint,
                output_sample_rate=info.output_sample_rate,
                presets=info.presets,
                default_voice=info.default_voice,
                languages=info.languages,
                engines=0,
                engines_ready=0,
            ),
        )
