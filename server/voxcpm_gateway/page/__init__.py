"""The web page of the gateway: plain ES modules and style sheets that need no build and load nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute

from voxcpm_client.transport.target import parse
from voxcpm_gateway.errors import HttpError
from voxcpm_gateway.exchange import Route
from voxcpm_gateway.page.encoding import encode, offered
from voxcpm_gateway.requests.callers import caller_client
from voxcpm_gateway.routes.websocket import MAX_WAITING_CHARS
from voxcpm_gateway.speech.voice_names import chosen_model
from voxcpm_gateway.state import GatewayState

if TYPE_CHECKING:
    from voxcpm_gateway.config import GatewayConfig

FOLDER = Path(__file__).parent
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES = {path.name: path for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES}
INDEX = "index.html"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "media-src blob:",  # the page plays the recording before it is used
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # an ETag goes with it, so that a new version of the gateway shows at once
}


def routes(config: GatewayConfig) -> list[BaseRoute]:
    """The page at `/`, its files, and what else it needs: the description of the model, and encoded speech."""
    return [
        Route("/", _index),
        Route("/page/model.json", _model),
        Route("/page/encode", encode, methods=["POST"]),
        Route("/page/{name}", _file),
    ]


async def _index(request: Request) -> Response:
    return _response(INDEX)


async def _file(request: Request) -> Response:
    name: str = request.path_params["name"]
    if name not in FILES:
        raise HttpError(404, "the page has no such file")
    return _response(name)


def _response(name: str) -> Response:
    path = FILES[name]
    return FileResponse(path, media_type=MEDIA_TYPES[path.suffix], headers=HEADERS)


async def _model(request: Request) -> Response:
    """The properties of a model, `?model=NAME` or the default one, that the page shows or sends.

    The server refuses callers without a valid key.
    """
    state, client = GatewayState.of(request), caller_client(request)
    names = [one.name for one in await state.models(client)]
    wanted = request.query_params.get("model", "")
    info = await client.model_info(chosen_model(wanted, names) if wanted else "")
    config = state.config
    body = {
        "model": info.model,
        "models": names,
        "version": info.server_version,
        "sample_rate": info.output_sample_rate,
        "sampling": list(info.sampling_fields),
        "timesteps": list(info.inference_timesteps),
        "default_timesteps": info.default_timesteps,
        "default_cfg_value": info.default_cfg_value,
        "default_temperature": info.default_sampling.get("temperature", 1.0),
        "presets": list(info.presets),
        "default_voice": info.default_voice,
        "voice_kinds": list(info.voice_kinds),
        "styles": info.styles,
        "needs_voice": info.needs_voice,
        "chooses_voice": not info.needs_voice and "speaker" not in info.voice_kinds,
        "languages": list(info.languages),
        "speech_languages": list(info.speech_languages),
        "max_recording_seconds": min(info.limits.max_prompt_seconds, info.limits.max_reference_seconds),
        "max_recording_bytes": info.limits.max_inline_audio_bytes,
        "max_text_chars": MAX_WAITING_CHARS,
        "formats": ["wav", *offered()],
        "max_encoded_bytes": config.max_body_bytes,
        "grpc": _grpc(config),
    }
    return JSONResponse(body, headers={"cache-control": "no-store"})


def _grpc(config: GatewayConfig) -> dict[str, Any] | None:
    """The port of the gRPC server on the host of this gateway; None if it is on another host, which stays unnamed."""
    if config.grpc_port:
        return {"port": config.grpc_port, "tls": config.grpc_tls}
    server = config.server
    target = parse(server.target)
    if not (target.is_loopback and target.port):
        return None
    return {"port": target.port, "tls": any((server.tls, server.ca, server.cert))}
