"""Files of speech that the page has: the gateway encodes the samples, so that nothing is spoken again."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from voxcpm_gateway.errors import HttpError
from voxcpm_gateway.requests.bodies import read
from voxcpm_gateway.speech.speech_request import FORMATS
from voxcpm_gateway.state import GatewayState
from voxcpm_grpc.audio.effects import Effects
from voxcpm_grpc.audio.encode import OutputPipeline
from voxcpm_grpc.audio.formats import SAMPLE_RATES, AudioFormat, Encoding, usual_rate

ENCODED = ("mp3", "flac", "opus")
PACKAGES = ("av", "soxr")  # the extra `server` has them; a gateway alone may lack them
PIECE_SECONDS = 1
FULL_SCALE = 32768


def offered() -> tuple[str, ...]:
    """The formats of files that this gateway can make."""
    return ENCODED if all(map(importlib.util.find_spec, PACKAGES)) else ()


async def encode(request: Request) -> Response:
    """Encode the 16-bit little-endian samples of the body."""
    query = request.query_params
    format, rate = _format(query), _rate(query)
    async with GatewayState.of(request).body_of(request) as limited:
        body = await read(limited)
        if len(body) % 2:
            raise HttpError(400, f"the body has {len(body)} bytes; samples of 16 bits have an even number")
        data = await asyncio.to_thread(_encoded, body, rate, Encoding(FORMATS[format][0]))
    return Response(data, media_type=FORMATS[format][1], headers={"cache-control": "no-store"})


def _format(query: Mapping[str, str]) -> str:
    given = query.get("format", "")
    if given not in offered():
        there = ", ".join(offered()) or "none, because the packages of the extra `server` are not installed"
        raise HttpError(400, f"format is {given[:20]!r}; this gateway has {there}", param="format")
    return given


def _rate(query: Mapping[str, str]) -> int:
    given = query.get("sample_rate", "")
    if given not in map(str, SAMPLE_RATES):
        rates = ", ".join(map(str, SAMPLE_RATES))
        raise HttpError(400, f"sample_rate is {given[:20]!r}; it must be one of {rates}", param="sample_rate")
    return int(given)


def _encoded(body: bytes, rate: int, encoding: Encoding) -> bytes:
    pipeline = OutputPipeline(rate, AudioFormat(encoding, usual_rate(encoding, rate)))
    pipeline.begin_turn(Effects())
    samples = np.frombuffer(body, "<i2")
    size = PIECE_SECONDS * rate
    pieces = [samples[at : at + size].astype(np.float32) / FULL_SCALE for at in range(0, len(samples), size)]
    return b"".join([*(pipeline.push(piece).data for piece in pieces), pipeline.flush().data])
