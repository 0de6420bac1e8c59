"""The errors of HTTP requests, in the shape of OpenAI's API, and the statuses that gRPC's codes become."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from voxcpm_client import SpeechError
from voxcpm_gateway.exchange import Exchange

STATUSES: Mapping[str, int] = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "ABORTED": 503,
    "DEADLINE_EXCEEDED": 504,
}
TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
CODES: Mapping[int, str] = {  # those that OpenAI's API has too
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    429: "rate_limit_exceeded",
}
PARAMETERS: Mapping[str, str] = {  # by the field of the gRPC request that is at fault
    "config.turn.style": "instructions",
    "config.turn.sampling.seed": "seed",
    "config.turn.sampling.cfg_value": "extra_params.cfg_value",
    "config.turn.sampling.temperature": "extra_params.temperature",
    "config.turn.sampling.inference_timesteps": "extra_params.inference_timesteps",
    "config.turn.sampling.max_steps": "extra_params.max_steps",
    "config.turn.lora": "lora",
    "config.turn.speed": "speed",
    "config.segmentation.language": "language",
    "config.output.sample_rate_hz": "sample_rate",
    "config.output": "response_format",
    "config.conditioning": "voice",
    "text": "input",
    "audio": "ref_audio",
}
RETRY_SECONDS = 1  # for a refusal that gives no time


class HttpError(Exception):
    """A request that cannot be served.

    status: the status of the response
    param: the field of the request at fault, None if there is none
    code: a word for programs; None for that of the status
    retry_after: seconds after which the caller may try again
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code or CODES.get(status)
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's API writes it, with the key `detail` of the services that use FastAPI."""
        return {"error": self.error, "detail": self.message}

    @property
    def error(self) -> dict[str, Any]:
        kind = TYPES.get(self.status) or ("server_error" if self.status >= 500 else "invalid_request_error")
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}

    def response(self) -> JSONResponse:
        headers: dict[str, str] = {}
        if self.status in (429, 503) and not (self.retry_after is not None and math.isinf(self.retry_after)):
            headers["retry-after"] = str(max(RETRY_SECONDS, math.ceil(self.retry_after or 0)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status in (408, 413):
            headers["connection"] = "close"  # the rest of the body is not read
        return JSONResponse(self.body, self.status, headers)


def from_server(error: SpeechError) -> HttpError:
    """The error of a call to the server, for the caller of the gateway."""
    status = STATUSES.get(error.code, 500)
    path = next((known for known in _prefixes(error.field) if known in PARAMETERS), "")
    return HttpError(
        status,
        error.message,
        param=PARAMETERS.get(path) or error.field.removeprefix("config.") or ("voice" if status == 404 else None),
        code="deadline_exceeded" if status == 504 else None if status in CODES else error.code.lower(),
        retry_after=error.retry_after,
    )


def _prefixes(path: str) -> list[str]:
    """The path, and the shorter ones that contain it, the longest first."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


async def respond(request: Request, error: Exception) -> JSONResponse:
    """The response to an error that a route raised, for Starlette."""
    found = as_http(error)
    Exchange.of(request.scope).code = found.code or ""
    return found.response()


def as_http(error: Exception) -> HttpError:
    """Any error of a route as one that the caller may see."""
    match error:
        case HttpError():
            return error
        case SpeechError():
            return from_server(error)
        case HTTPException():
            return HttpError(error.status_code, _phrase(error))
    return HttpError(500, "the gateway has a fault; its log has the cause under the request id", code="internal")


def _phrase(error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return "there is no such address; /docs lists those of this gateway"
        case 405:
            return "the address does not have this method; /docs lists those of this gateway"
    return error.detail
