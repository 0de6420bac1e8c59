"""Bodies of requests, read within limits of size and time."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from voxcpm_gateway.errors import HttpError
from voxcpm_gateway.fields import Field, unknown

LARGE_BYTES = 256 << 10  # of a body that a thread reads, because it would block the event loop
MAX_FORM_FIELD = 64 << 10


class BodyLimits:
    """Reads bodies: each of at most `most` bytes, all that are in memory together of at most `most_in_all`.

    read_seconds: longest pause of a client in a body
    """

    def __init__(self, *, most: int, most_in_all: int, read_seconds: float) -> None:
        self._most = most
        self._most_in_all = most_in_all
        self._read_seconds = read_seconds
        self.held = 0

    @asynccontextmanager
    async def limited(self, request: Request) -> AsyncIterator[Request]:
        """The request with a body that ends with HttpError 408, 413 or 503 if it breaks a limit.

        The body counts as memory until the end of the block.
        """
        declared = request.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._most:
            raise self._too_large(int(declared))
        reader = _Reader(request, self)
        try:
            yield Request(request.scope, reader.receive)
        finally:
            self.held -= reader.read

    async def receive(self, request: Request) -> Message:
        try:
            async with asyncio.timeout(self._read_seconds):
                return await request.receive()
        except TimeoutError:
            raise HttpError(
                408, f"no part of the body arrived for {self._read_seconds:g} s; send the whole request", code="timeout"
            ) from None

    def hold(self, size: int, total: int) -> None:
        """Count `size` more bytes, of a body that then has `total`. Raises HttpError."""
        if total > self._most:
            raise self._too_large(total)
        if self.held + size > self._most_in_all:
            raise HttpError(
                503, f"requests in progress hold {self.held} bytes, of at most {self._most_in_all}; try again"
            )
        self.held += size

    def _too_large(self, size: int) -> HttpError:
        return HttpError(
            413,
            f"the body has {size} bytes or more and the limit is {self._most}; send a shorter recording",
            code="request_too_large",
        )


class _Reader:
    """The body of one request; `read` bytes of it are in memory."""

    def __init__(self, request: Request, limits: BodyLimits) -> None:
        self._request = request
        self._limits = limits
        self.read = 0

    async def receive(self) -> Message:
        message = await self._limits.receive(self._request)
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._limits.hold(size, self.read + size)
            self.read += size
        return message


async def read_json(request: Request) -> object:
    """The body as JSON. Raises HttpError."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise HttpError(
            415, f"the content type is {kind[:60]!r}; it must be application/json", code="unsupported_media_type"
        )
    body = await read(request)
    return await asyncio.to_thread(_parsed, body) if len(body) > LARGE_BYTES else _parsed(body)


async def read(request: Request) -> bytes:
    """The body. Raises ClientGone if the client has gone."""
    try:
        return await request.body()
    except ClientDisconnect:
        raise ClientGone from None


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        where = f" at position {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise HttpError(400, f"the body is not JSON{where}", code="invalid_json") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


@asynccontextmanager
async def read_form(request: Request, fields: Sequence[Field]) -> AsyncIterator[dict[str, Any]]:
    """The fields of a multipart body: strings, and bytes of files. Raises HttpError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise HttpError(
            415, f"the content type is {kind[:60]!r}; it must be multipart/form-data", code="unsupported_media_type"
        )
    form = await _parsed_form(request, len(fields))
    try:
        yield await _values(form, fields)
    finally:
        await form.close()


async def _parsed_form(request: Request, fields: int) -> FormData:
    try:
        return await request.form(max_files=1, max_fields=fields, max_part_size=MAX_FORM_FIELD)
    except ClientDisconnect:
        raise ClientGone from None
    except HTTPException as error:  # from the parser
        raise HttpError(400, f"the body is not a valid form: {error.detail}", code="invalid_form") from None
    except (KeyError, UnicodeDecodeError, AssertionError):
        raise HttpError(
            400, "the body is not a valid form: its boundary or a name is wrong", code="invalid_form"
        ) from None


async def _values(form: FormData, fields: Sequence[Field]) -> dict[str, Any]:
    known = {field.name: field for field in fields}
    values: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name not in known:
            raise unknown(name, name, known)
        if name in values:
            raise HttpError(400, f"{name} is given twice", param=name)
        is_file = isinstance(value, UploadFile)
        if is_file != (known[name].kind == "file"):
            raise HttpError(400, f"{name} must be {'text' if is_file else 'a file'}", param=name)
        values[name] = await value.read() if isinstance(value, UploadFile) else value
    for field in fields:
        if field.required and not values.get(field.name):
            raise HttpError(400, f"{field.name} is missing or empty; it is required", param=field.name)
    return values


async def from_base64(text: str, param: str) -> bytes:
    """The bytes of a field in base64. Raises HttpError."""
    try:
        if len(text) > LARGE_BYTES:
            return await asyncio.to_thread(base64.b64decode, text, validate=True)
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise HttpError(
            400, f"{param} is not base64; send the bytes of the whole file in base64", param=param
        ) from None
