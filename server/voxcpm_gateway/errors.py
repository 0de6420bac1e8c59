"""The errors of HTTP requests, in the shape of OpenAI's API, and the statuses that gRPC's codes become."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match, Route

from voxcpm_client import SpeechError
from voxcpm_gateway.exchange import NO_FIELDS, Exchange

log = logging.getLogger("voxcpm_gateway")

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
CODES: Mapping[int, str] = {  # OpenAI's API has them too
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    429: "rate_limit_exceeded",
}
LOST: Mapping[int, str] = {  # callers get these words instead of those about the connection to the server
    429: "the server takes no more calls now; try again later",
    501: "the server does not have this call; it is of another version than the gateway",
    503: "the server cannot be reached, or has ended; try again",
    504: "the call took longer than the gateway waits for the server; send less at a time, or try again",
}
FAILED = "the call has failed; the gateway's log has the cause under the request id"
REFUSALS: Mapping[str, int] = {  # the reason decides before the code does
    "CREDENTIAL_TOO_LONG": 431,
    "METADATA_TOO_LONG": 431,
    "MESSAGE_TOO_LARGE": 413,
}
VOICE = "config.conditioning.voice"  # the gRPC request has the voice at this path
MISSING: Mapping[str, str] = {  # the keys are reasons, the values are other paths
    "LANGUAGES_NOT_SUPPORTED": "config.turn.language",
    "LORA_NOT_FOUND": "lora",
    "MODEL_NOT_FOUND": "model",
    "NAME_TAKEN": "display_name",
    "PRESET_NOT_FOUND": VOICE,
    "VOICE_NOT_FOUND": VOICE,
}
QUOTED = r"(?<!\w)'[^']*'"  # a message quotes a value so
# A word of this form may be the name or the path of a field, unless it is quoted.
PATH = re.compile(rf"{QUOTED}|[a-z][a-z0-9]*(?:[._][a-z0-9]+)+")
SUBJECT = re.compile(r"(?:(?:an?|the) )?([a-z_]+)")
REMEDY = re.compile(r",? or \w+ ([a-z]+(?:_[a-z]+)+)\b")  # the last one of several remedies names a field
RETRY_SECONDS = 1  # seconds for a refusal that gives no time


class HttpError(Exception):
    """A request that cannot be served.

    status: the status of the response
    param: the field of the request at fault, None if there is none
    code: a word for programs; None for that of the status
    retry_after: seconds after which the caller may try again
    headers: more headers of the response
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = encodable(message)
        self.param = None if param is None else encodable(param)
        self.code = code or CODES.get(status)
        self.retry_after = retry_after
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's API writes it, with the key `detail` of the services that use FastAPI."""
        return {"error": self.error, "detail": self.message}

    @property
    def error(self) -> dict[str, Any]:
        kind = TYPES.get(self.status) or ("server_error" if self.status >= 500 else "invalid_request_error")
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}

    def response(self) -> JSONResponse:
        headers = dict(self.headers)
        if self.status in (429, 503) and not (self.retry_after is not None and math.isinf(self.retry_after)):
            headers["retry-after"] = str(max(RETRY_SECONDS, math.ceil(self.retry_after or 0)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status in (408, 413):
            headers["connection"] = "close"  # the rest of the body is not read
        return JSONResponse(self.body, self.status, headers)


def encodable(text: str) -> str:
    """A text of a caller that can be sent: halves of surrogate pairs are written as \\udXXX."""
    return text.encode("utf-8", "backslashreplace").decode()


def from_server(error: SpeechError, names: Mapping[str, str] = NO_FIELDS) -> HttpError:
    """The error of a call to the server, for the caller of the gateway, in the words of the caller's own request.

    names: the fields of the caller's request by those of the gRPC request that they set
    """
    if error.reason in REFUSALS:
        return HttpError(REFUSALS[error.reason], error.message, code=error.reason.lower())
    status = STATUSES.get(error.code, 500)
    param = _parameter(error, names)
    return HttpError(
        status,
        LOST.get(status, FAILED) if error.about_connection else _translated(error, param, names),
        param=param,
        code="deadline_exceeded" if status == 504 else None if status in CODES else error.code.lower(),
        retry_after=error.retry_after,
    )


def _parameter(error: SpeechError, names: Mapping[str, str]) -> str | None:
    """The caller's field at fault.

    The server gives the path of a field with a wrong value, the reason where a thing is missing, and the option that a
    model does not have. Where another field does not fit the server, the message alone names it.
    """
    path = re.sub(r"\[\d+\]", "", error.field) or MISSING.get(error.reason, "") or error.details.get("option", "")
    if not path and error.code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION"):
        path = _named(re.sub(QUOTED, "", error.message), names)
    whole, *shorter = _prefixes(path)
    return next((names[one] for one in (whole, path.rpartition(".")[2], *shorter) if one in names), None)


def _named(message: str, names: Mapping[str, str]) -> str:
    """The field that a message begins with, or the one that its remedy says to change; empty if it names none."""
    subject = SUBJECT.match(message)
    if subject and subject[1] in names:
        return subject[1]
    own = {name.rpartition(".")[2] for name in names.values()}
    return next((word for word in reversed(re.findall("[a-z_]+", message.rpartition("; ")[2])) if word in own), "")


def _translated(error: SpeechError, param: str | None, names: Mapping[str, str]) -> str:
    """The message with the caller's names of fields, and without remedies that need other ones.

    It names the field at fault.
    """

    def name(word: re.Match[str]) -> str:
        return next((names[one] for one in (word[0], word[0].rpartition(".")[2]) if one in names), word[0])

    message = REMEDY.sub(lambda remedy: remedy[0] if remedy[1] in names else "", error.message)
    message = PATH.sub(name, message)
    if param is None or error.code == "NOT_FOUND" or re.search(rf"(?<![\w.]){re.escape(param)}(?!\w)", message):
        return message
    subject, verb, rest = message.partition(" is ")
    if verb and subject == error.field.rpartition(".")[2]:
        return f"{param}{verb}{rest}"
    return f"{param}: {message}"


def _prefixes(path: str) -> list[str]:
    """The path, and the shorter ones that contain it, the longest first."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


async def respond(request: Request, error: Exception) -> JSONResponse:
    """The response to an error that a route raised, for Starlette."""
    exchange = Exchange.of(request.scope)
    found = as_http(error, exchange)
    if found.status == 405:
        found.headers = {"allow": ", ".join(sorted(_methods(request)))}
    exchange.code = found.code or ""
    return found.response()


def _methods(request: Request) -> set[str]:
    """The methods of an address, which may be those of several routes."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in matching for method in route.methods or ()}


def as_http(error: Exception, exchange: Exchange) -> HttpError:
    """Any error of a request as one that the caller may see. The log has what the caller may not see."""
    match error:
        case HttpError():
            return error
        case SpeechError():
            if error.about_connection:
                log.warning("call id=%s to the server failed: %s", exchange.request_id, error.message)
            return from_server(error, exchange.names())
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
