"""The OpenAPI document of the gateway, made from the tables that also check requests, and a page for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any

from voxcpm_gateway.requests.fields import NAMES, Field, object_schema
from voxcpm_gateway.routes import older, openai
from voxcpm_gateway.speech import speech_request
from voxcpm_grpc import __version__

AUDIO = (*(media_type for _, media_type in speech_request.FORMATS.values()), "text/event-stream")
JSON = ("application/json",)
STATUSES = {
    "400": "The request is wrong; `error.param` names the field.",
    "401": "The server needs a key, or does not accept this one.",
    "403": "The key does not allow this, or the request comes from the page of another origin.",
    "404": "There is no such voice or model.",
    "408": "The request did not arrive in time.",
    "409": "The name is taken.",
    "413": "The body is too large.",
    "415": "The body is neither JSON nor a form, or it is compressed.",
    "421": "The gateway does not have this host; its operator can allow the name.",
    "429": "The server has no capacity; `retry-after` says when to try again.",
    "431": "The key or token is too long.",
    "500": "The server has a fault.",
    "503": "The server is starting, ending or lost; `retry-after` says when to try again.",
    "504": "The call took too long.",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one address."""

    method: str
    path: str
    about: str
    fields: Sequence[Field] = ()
    is_form: bool = False
    query: Sequence[tuple[str, str]] = ()  # names of parameters, and their meanings
    answers: Sequence[str] = JSON

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "summary": self.about,
            "responses": {
                "200": {"description": "The result.", "content": {kind: {} for kind in self.answers}},
                **{
                    status: {"description": text, "content": {JSON[0]: {"schema": {"$ref": ERROR}}}}
                    for status, text in STATUSES.items()
                },
            },
        }
        text = {"schema": {"type": "string"}}
        parameters = [{"name": "id", "in": "path", "required": True, **text}] if "{id}" in self.path else []
        parameters += [{"name": name, "in": "query", "description": about, **text} for name, about in self.query]
        if parameters:
            found["parameters"] = parameters
        if self.fields:
            kind = "multipart/form-data" if self.is_form else JSON[0]
            found["requestBody"] = {"required": True, "content": {kind: {"schema": object_schema(self.fields)}}}
        return found


ERROR = "#/components/schemas/Error"
OPERATIONS = (
    Operation("post", "/v1/audio/speech", "Speak a text.", speech_request.FIELDS, answers=AUDIO),
    Operation("get", "/v1/models", "List the names of the models."),
    Operation("get", "/v1/models/{id}", "Describe a model."),
    Operation("get", "/v1/audio/models", "List the names of the model, as Open WebUI asks for them."),
    Operation("get", "/v1/audio/voices", "List the presets and the stored voices.", query=openai.LISTED_BY),
    Operation("post", "/v1/audio/voices", "Store a voice.", openai.VOICE_FIELDS, is_form=True),
    Operation("delete", "/v1/audio/voices/{id}", "Delete a stored voice."),
    Operation("post", "/generate", "Speak a text, as the older services do.", older.GENERATE_FIELDS, answers=AUDIO[:1]),
    Operation(
        "post",
        "/generate_blocking",
        "Speak a text, with the whole MP3 at the end.",
        older.GENERATE_FIELDS[:-1],
        answers=AUDIO[:1],
    ),
    Operation(
        "post",
        "/generate_blocking_wav",
        "Speak a text, with the whole WAV at the end.",
        older.GENERATE_FIELDS[:-1],
        answers=("audio/wav",),
    ),
    Operation("post", "/encode_latents", "Encode a recording to latents.", older.ENCODE_FIELDS),
    Operation("post", "/add_prompt", "Store a prompt.", older.PROMPT_FIELDS),
    Operation("post", "/add_reference", "Store a reference.", older.REFERENCE_FIELDS),
    Operation("post", "/add_hifi", "Store a hifi voice.", older.PROMPT_FIELDS),
    *(Operation("get", f"/{folder}", f"List the stored {folder}.") for folder in older.KINDS),
    *(Operation("delete", f"/{folder}/{{id}}", f"Delete one of the stored {folder}.") for folder in older.KINDS),
    Operation("get", "/info", "Describe the model, as the older services do."),
    Operation("get", "/health", "Liveness: 200 as long as the gateway runs."),
    Operation("get", "/ready", "Readiness: 200 if the server accepts calls."),
    Operation("get", "/metrics", "Metrics of the gateway for Prometheus.", answers=("text/plain",)),
)


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = operation.document()
    nullable = {"type": ["string", "null"]}
    error = {"message": {"type": "string"}, "type": {"type": "string"}, "param": nullable, "code": nullable}
    return {
        "openapi": "3.1.0",
        "info": {"title": "voxcpm-grpc gateway", "version": __version__},
        "paths": paths,
        "security": [{}, {"key": []}],
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": {
                    "type": "object",
                    "properties": {
                        "error": {"type": "object", "properties": error},
                        "detail": {"type": "string", "description": "The message, as the older services send it."},
                    },
                }
            },
        },
    }


STYLE = (
    ":root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:auto;padding:1rem}"
    "code{font-family:ui-monospace,monospace}table{border-collapse:collapse;width:100%}"
    "td,th{border-bottom:1px solid #8886;padding:.3rem;text-align:left;vertical-align:top}"
)


@cache
def page() -> str:
    """The document as a page of HTML that needs no other resource."""
    sections = "".join(_section(operation) for operation in OPERATIONS)
    statuses = _table(("status", "meaning"), STATUSES.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>voxcpm-grpc gateway</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>voxcpm-grpc gateway {escape(__version__)}</h1>"
        f'<p>For programs: <a href="openapi.json">openapi.json</a>.</p>{sections}'
        f"<h2>Errors</h2>{statuses}</body></html>"
    )


def _section(operation: Operation) -> str:
    title = f"<h2><code>{operation.method.upper()} {escape(operation.path)}</code></h2><p>{escape(operation.about)}</p>"
    if operation.query:
        title += _table(("parameter", "meaning"), operation.query)
    if not operation.fields:
        return title
    return title + _table(("field", "value", "meaning"), _rows(operation.fields))


def _rows(fields: Sequence[Field], path: str = "") -> Iterator[tuple[str, str, str]]:
    for field in fields:
        yield f"{path}{field.name}", NAMES[field.kind] + ", required" * field.required, field.about
        yield from _rows(field.fields, f"{path}{field.name}.")


def _table(head: Sequence[str], rows: Any) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{body}</table>"
