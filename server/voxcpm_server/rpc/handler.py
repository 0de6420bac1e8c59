"""Where an RPC ends: the one place that turns errors into statuses and logs a line for each."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import re
import unicodedata
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from voxcpm_grpc.errors import Exhausted, Internal, InvalidRequest, Unavailable, VoxCPMError, code_of
from voxcpm_grpc.v1 import tts_pb2
from voxcpm_server.rpc.call import STREAMS_RETRY_SECONDS, Call, Malformed, Requests

log = logging.getLogger(__name__)

SERVICE = tts_pb2.DESCRIPTOR.services_by_name["VoxCPMService"].full_name

MAX_MESSAGE_BYTES = 1000  # percent-encoded, base64 and repeated in a detail, a status stays under 8 kB
MAX_FIELD_BYTES = 200


def rpc(*, stream: bool) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
    """Wraps a servicer method `(self, request or iterator, call)`; `self.gate` admits it."""

    def decorate(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(method)
        async def handler(self: Any, request: Any, context: grpc.aio.ServicerContext) -> Any:
            call = Call(method.__name__, context)
            requests = Requests(request) if stream else None
            try:
                if isinstance(request, Malformed):
                    raise request.error()
                with self.gate.enter(stream=stream):
                    result = await method(self, requests or request, call)
                _log_end(call, "OK")
                return result
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    _log_end(call, "CANCELLED")  # by gRPC: the caller's cancel, its deadline, a lost connection
                    raise
                # Anything else that was cancelled would leave the caller without a status, hanging.
                log.error("rpc id=%s method=%s cancelled from inside", _word(call.request_id), call.method)
                error: VoxCPMError = Internal()
            except VoxCPMError as caught:
                error = caught
            except Exception:
                log.exception("rpc id=%s method=%s failed", _word(call.request_id), call.method)
                error = Internal()
            _log_end(call, code_of(error), error)
            if requests is not None:
                await requests.linger()
            return await context.abort(*status_of(error, call.request_id))

        return handler

    return decorate


class Parsing(grpc.aio.ServerInterceptor):
    """Hands bytes that are no message to the RPC, to refuse: gRPC would end it with the parser's own words."""

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(f"/{SERVICE}/"):
            return handler
        parse = handler.request_deserializer

        def parse_or_report(data: bytes) -> Any:
            try:
                return parse(data)
            except DecodeError:
                return Malformed()

        return handler._replace(request_deserializer=parse_or_report)


def status_of(error: VoxCPMError, request_id: str) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]:
    """Code, message and trailing metadata (google.rpc.Status with its details, retry pushback) of an error."""
    code = grpc.StatusCode[code_of(error)]
    message = clean(error.message, MAX_MESSAGE_BYTES)
    details: list[Any] = [error_details_pb2.RequestInfo(request_id=clean(request_id, MAX_FIELD_BYTES))]
    if isinstance(error, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=clean(error.field, MAX_FIELD_BYTES), description=message
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after is not None or isinstance(error, Exhausted | Unavailable):
        milliseconds = max(
            0, math.ceil(1000 * (STREAMS_RETRY_SECONDS if error.retry_after is None else error.retry_after))
        )
        delay = Duration()
        delay.FromMilliseconds(milliseconds)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        metadata = (("grpc-retry-pushback-ms", str(milliseconds)),)
    else:
        metadata = ()
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return code, message, (*metadata, ("grpc-status-details-bin", status.SerializeToString()))


def clean(text: str, max_bytes: int) -> str:
    """The text without control characters, at most `max_bytes` of UTF-8."""
    kept = "".join(" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in text[:max_bytes])
    encoded = kept.encode()
    return kept if len(encoded) <= max_bytes else encoded[: max_bytes - 3].decode(errors="ignore") + "…"


def _word(text: str) -> str:
    """One word of a key=value line, whatever a caller sent."""
    return re.sub(r"[^\w.:/@+-]", "_", text) or "-"


def _log_end(call: Call, code: str, error: VoxCPMError | None = None) -> None:
    log.info(
        "rpc id=%s method=%s code=%s seconds=%.3f audio_seconds=%.3f%s",
        _word(call.request_id),
        call.method,
        code,
        call.elapsed,
        call.audio_seconds,
        f" field={_word(error.field)} error={clean(error.message, 300)!r}" if error else "",
    )
