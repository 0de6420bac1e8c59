"""The application: all routes, their errors, and the client that they share."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from voxcpm_client import AsyncClient, SpeechError
from voxcpm_gateway.config import GatewayConfig
from voxcpm_gateway.errors import HttpError, respond
from voxcpm_gateway.metrics import GatewayMetrics
from voxcpm_gateway.middleware import Addresses, ExchangeLog
from voxcpm_gateway.requests.access import Access
from voxcpm_gateway.requests.bodies import BodyLimits
from voxcpm_gateway.routes import older, openai, operation
from voxcpm_gateway.speech.voice_names import VoiceNames
from voxcpm_gateway.state import GatewayState
from voxcpm_grpc.network.web_names import EVERY, allowed_host, allowed_origin

OTHERS = ("voxcpm_gateway.routes.websocket", "voxcpm_gateway.page")
log = logging.getLogger("voxcpm_gateway")


def create_app(config: GatewayConfig) -> Starlette:
    """The ASGI application of a gateway. Raises InvalidArgument for a server that cannot be called,
    and ValueError for a host or an origin that is none.

    `app.state.client` is the client of the server that all requests share, `app.state.gateway` a GatewayState.
    """
    metrics = GatewayMetrics(config.metrics_folder)
    client = AsyncClient(
        **{field.name: getattr(config.server, field.name) for field in dataclasses.fields(config.server)}
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    hosts = frozenset(map(allowed_host, config.allowed_hosts))
    origins = frozenset(map(allowed_origin, config.allowed_origins))
    if EVERY in hosts:
        log.warning(
            "allowed hosts: *, so pages of every site reach this gateway by DNS rebinding; name its hosts instead"
        )
    app = Starlette(
        routes=[*openai.routes(), *older.routes(), *operation.routes(), *_others(config)],
        middleware=[
            Middleware(ExchangeLog, metrics=metrics),
            Middleware(Access, hosts=hosts, origins=origins),
            Middleware(Addresses),
        ],
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
