"""The routes for operators: liveness, readiness, metrics, and the description of the routes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute

from voxcpm_client import SpeechError
from voxcpm_gateway.errors import HttpError
from voxcpm_gateway.exchange import Route
from voxcpm_gateway.routes import openapi
from voxcpm_gateway.state import GatewayState

OK = {"status": "ok"}
RETRY_SECONDS = 1.0
PAGE_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}


def routes() -> list[BaseRoute]:
    return [
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/openapi.json", document, methods=["GET"]),
        Route("/docs", page, methods=["GET"]),
        Route("/docs/openapi.json", document, methods=["GET"]),  # the page at /docs/ links to it
    ]


async def health(request: Request) -> Response:
    """200 as long as the gateway runs, whatever the server does."""
    return JSONResponse(OK)


async def ready(request: Request) -> Response:
    """200 if the server accepts calls."""
    try:
        serving = await request.app.state.client.health()
    except SpeechError:
        serving = False
    if not serving:
        raise HttpError(503, "the server is not ready", code="not_ready", retry_after=RETRY_SECONDS)
    return JSONResponse(OK)


async def metrics(request: Request) -> Response:
    body, kind = GatewayState.of(request).metrics.page()
    return Response(body, media_type=kind)


async def document(request: Request) -> Response:
    return JSONResponse(openapi.document())


async def page(request: Request) -> Response:
    return HTMLResponse(openapi.page(), headers=PAGE_HEADERS)
