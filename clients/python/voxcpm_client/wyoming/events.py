"""Reads the events of a caller within limits: the reader of the package `wyoming` has none, and hides what is wrong."""

# pyright: basic, reportMissingImports=warning
from __future__ import annotations

import asyncio
import json
from typing import Any

from wyoming.event import Event

HEADER_BYTES = 64 << 10  # bytes of the line of JSON that begins an event
DATA_BYTES = 64 << 10  # bytes of the JSON after it, which bound the text of an event
PAYLOAD_BYTES = 1 << 20  # bytes after that, which are skipped: no event for speech has any
SKIPPED_AT_ONCE = 64 << 10


class BadEvent(Exception):
    """An event that cannot be understood, or that breaks a rule. The text is for the caller."""


async def read_event(reader: asyncio.StreamReader, seconds: float) -> Event | None:
    """The next event; None at the end of the connection, also in the middle of an event.

    The reader must have been opened with a limit of HEADER_BYTES. Raises BadEvent.

    seconds: in which the rest of an event follows its first byte
    """
    first = await reader.read(1)
    try:
        async with asyncio.timeout(seconds):
            return await _rest(first, reader) if first else None
    except asyncio.IncompleteReadError:
        return None
    except TimeoutError:
        raise BadEvent(f"an event was begun and did not end within {seconds:g} s") from None


async def _rest(first: bytes, reader: asyncio.StreamReader) -> Event:
    try:
        line = first if first == b"\n" else first + await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise BadEvent(f"the line of JSON that begins an event is longer than {HEADER_BYTES} bytes") from None
    header = _object(line, "the line that begins an event")
    kind, data = header.get("type"), header.get("data") or {}
    if not isinstance(kind, str) or not isinstance(data, dict):
        raise BadEvent('an event is {"type": "NAME", "data": {...}}, and this one is not')
    data_bytes = _length(header, "data_length", DATA_BYTES)
    payload_bytes = _length(header, "payload_length", PAYLOAD_BYTES)
    if data_bytes:
        data = data | _object(await reader.readexactly(data_bytes), "the data of an event")
    while payload_bytes > 0:
        payload_bytes -= len(await reader.readexactly(min(payload_bytes, SKIPPED_AT_ONCE)))
    return Event(kind, data)


def _object(raw: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):  # brackets in brackets raise RecursionError
        raise BadEvent(f"{what} must be JSON") from None
    if not isinstance(found, dict):
        raise BadEvent(f"{what} must be an object of JSON")
    return found


def _length(header: dict[str, Any], name: str, limit: int) -> int:
    length = header.get(name) or 0
    if type(length) is not int or length < 0:
        raise BadEvent(f"{name} must be a number of bytes")
    if length > limit:
        raise BadEvent(f"{name} is {length} and the limit is {limit}; send long texts as several synthesize-chunk")
    return length
