"""Bodies of requests, read within limits of size and time."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from voxcpm_gateway.errors import HttpError
from voxcpm_gateway.exchange import Exchange
from voxcpm_gateway.requests.fields import SHOWN_KEY, Field, checked, names_of, unknown

LARGE_BYTES = 256 << 10  # a thread reads bodies from this size on, because they would block the event loop
MAX_FORM_FIELD = 64 << 10
FORM_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")
MAX_DIGITS = 40  # digits of a whole number that is kept exactly; no field has as many
FROM_URL_ALPHABET = str.maketrans("-_", "+/")


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


async def read_json(request: Request, fields: Sequence[Field]) -> dict[str, Any]:
    """The values of the fields of a body of JSON. Raises HttpError.

    Errors of the server name these fields from now on.
    """
    kind = _media_type(request) or "application/json"
    if kind != "application/json" and not kind.endswith("+json"):
        raise HttpError(
            415, f"the content type is {kind[:60]!r}; it must be application/json", code="unsupported_media_type"
        )
    body = await read(request)
    large = len(body) > LARGE_BYTES
    values = await asyncio.to_thread(_values, body, fields) if large else _values(body, fields)
    return _noted(request, values, fields)


def _values(body: bytes, fields: Sequence[Field]) -> dict[str, Any]:
    return checked(parse_json(body), fields)


def _media_type(request: Request) -> str:
    """The media type of a body; empty if the request names none. Raises HttpError for a compressed body."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise HttpError(
            415,
            f"the body has the content encoding {encoding[:60]!r}; send it uncompressed, without this header",
            code="unsupported_media_type",
        )
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _noted(request: Request, values: dict[str, Any], fields: Sequence[Field]) -> dict[str, Any]:
    Exchange.of(request.scope).names = partial(names_of, fields, tuple(values))
    return values


async def read(request: Request) -> bytes:
    """The body. Raises ClientGone if the client has gone."""
    try:
        return await request.body()
    except ClientDisconnect:
        raise ClientGone from None


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


def parse_json(data: bytes | str, what: str = "body") -> object:
    """The value of a JSON text, of UTF-8 if it is bytes; UTF-16 and UTF-32 are detected. Raises HttpError.

    Numbers of any length have a value: long whole numbers are floats, and those that are too large are infinite. So the
    checks of the fields can name the field, also for NaN and Infinity, which some programs write.

    what: the text in errors
    """
    try:
        return json.loads(data, parse_int=_whole_number, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise HttpError(400, f"the {what} is not JSON at position {error.pos}", code="invalid_json") from None
    except UnicodeDecodeError as error:
        raise HttpError(
            400, f"the {what} is not JSON: its byte {error.start} is not of UTF-8; send UTF-8", code="invalid_json"
        ) from None
    except RecursionError:
        raise HttpError(400, f"the {what} is not JSON: it is nested too deeply", code="invalid_json") from None


def _whole_number(digits: str) -> float:
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise HttpError(400, f"the field {name[:SHOWN_KEY]!r} is given twice; send it once", param=name[:SHOWN_KEY])
        found[name] = value
    return found


@asynccontextmanager
async def read_form(request: Request, fields: Sequence[Field]) -> AsyncIterator[dict[str, Any]]:
    """The values of the fields of a multipart body: strings, and bytes of files. Raises HttpError.

    Errors of the server name these fields from now on.
    """
    kind = _media_type(request)
    if kind != "multipart/form-data":
        raise HttpError(
            415, f"the content type is {kind[:60]!r}; it must be multipart/form-data", code="unsupported_media_type"
        )
    _, options = parse_options_header(request.headers["content-type"])
    charset = options.get(b"charset", b"utf-8").decode("latin-1")
    if charset.lower() not in FORM_CHARSETS:
        raise HttpError(
            415, f"the charset of the form is {charset[:60]!r}; it must be UTF-8", code="unsupported_media_type"
        )
    form = await _parsed_form(request, len(fields))
    try:
        yield _noted(request, checked(await _given(form, fields), fields), fields)
    finally:
        await form.close()


async def _parsed_form(request: Request, fields: int) -> FormData:
    try:
        return await request.form(max_files=1, max_fields=fields, max_part_size=MAX_FORM_FIELD)
    except ClientDisconnect:
        raise ClientGone from None
    except HTTPException as error:  # the parser raises it
        raise HttpError(400, f"the body is not a valid form: {error.detail}", code="invalid_form") from None
    except (LookupError, ValueError, AssertionError):
        raise HttpError(
            400, "the body is not a valid form: its boundary or a name is wrong", code="invalid_form"
        ) from None


async def _given(form: FormData, fields: Sequence[Field]) -> dict[str, object]:
    known = {field.name: field for field in fields}
    given: dict[str, object] = {}
    for name, value in form.multi_items():
        if name not in known:
            raise unknown("", name, known)
        if name in given:
            raise HttpError(400, f"{name} is given twice", param=name)
        is_file = isinstance(value, UploadFile)
        if is_file != (known[name].kind == "file"):
            raise HttpError(400, f"{name} must be {'text' if is_file else 'a file'}", param=name)
        given[name] = await value.read() if isinstance(value, UploadFile) else value
    return given


async def from_base64(text: str, param: str) -> bytes:
    """The bytes of a field in base64, also in the alphabet of URLs, with line breaks or unpadded. Raises HttpError."""
    return await asyncio.to_thread(_decoded, text, param) if len(text) > LARGE_BYTES else _decoded(text, param)


def _decoded(text: str, param: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        kept = "".join(text.split()).translate(FROM_URL_ALPHABET).rstrip("=")
    try:
        return base64.b64decode(kept + "=" * (-len(kept) % 4), validate=True)
    except ValueError:
        raise HttpError(
            400, f"{param} is not base64; send the bytes of the whole file in base64", param=param
        ) from None
