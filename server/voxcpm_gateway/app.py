"""The application: all routes, their errors, and the client that they share."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute

from voxcpm_client import AsyncClient, SpeechError
from voxcpm_gateway import older, openai, operation
from voxcpm_gateway.bodies import BodyLimits
from voxcpm_gateway.config import GatewayConfig
from voxcpm_gateway.errors import HttpError, respond
from voxcpm_gateway.metrics import GatewayMetrics
from voxcpm_gateway.middleware import REQUEST_ID, ExchangeLog, OriginCheck
from voxcpm_gateway.state import GatewayState
from voxcpm_gateway.voice_names import VoiceNames

OTHERS = ("voxcpm_gateway.websocket", "voxcpm_gateway.page")
AUDIO_HEADERS = ("x-audio-sample-rate", "x-audio-channels", "x-audio-encoding")
PREFLIGHT_SECONDS = 600


def create_app(config: GatewayConfig) -> Starlette:
    """The ASGI application of a gateway. Raises InvalidArgument for a server that cannot be called.

    `app.state.client` is the client of the server that all requests share, `app.state.gateway` a GatewayState.
    """
    metrics = GatewayMetrics()
    client = AsyncClient(
        **{field.name: getattr(config.server, field.name) for field in dataclasses.fields(config.server)}
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    middleware = [Middleware(ExchangeLog, metrics=metrics), Middleware(OriginCheck, allowed=config.allowed_origins)]
    if config.allowed_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=config.allowed_origins,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["authorization", "content-type", REQUEST_ID],
                expose_headers=[REQUEST_ID, "retry-after", *AUDIO_HEADERS],
                max_age=PREFLIGHT_SECONDS,
            )
        )
    app = Starlette(
        routes=[*openai.routes(), *older.routes(), *operation.routes(), *_others(config)],
        middleware=middleware,
        exception_handlers={HttpError: respond, SpeechError: respond, HTTPException: respond},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.client = client
    app.state.gateway = GatewayState(
        config=config,
        bodies=BodyLimits(
            most=config.max_body_bytes, most_in_all=config.max_bodies_bytes, read_seconds=config.read_seconds
        ),
        voices=VoiceNames(config.voice_aliases),
        metrics=metrics,
    )
    return app


def _others(config: GatewayConfig) -> list[BaseRoute]:
    """The WebSocket and the web page, as far as they are installed."""
    found = [importlib.import_module(name) for name in OTHERS if importlib.util.find_spec(name)]
    return [route for module in found for route in module.routes(config)]
