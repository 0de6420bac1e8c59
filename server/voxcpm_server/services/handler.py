"""The end of every RPC: turns errors into statuses and logs one line."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
import traceback
import unicodedata
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from voxcpm_grpc.errors import (
    MISSING,
    Aborted,
    Exhausted,
    Internal,
    InvalidRequest,
    Reason,
    Unavailable,
    VoxCPMError,
    code_of,
)
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.v1 import tts_pb2
from voxcpm_server.auth.principal import Caller
from voxcpm_server.operation.metrics import Metrics
from voxcpm_server.operation.recent import RecentCalls
from voxcpm_server.rpc.call import STREAMS_RETRY_SECONDS, Call, MalformedMessage, Peer, RequestStream
from voxcpm_server.rpc.delivery import STATUS_SECONDS, ReplyWriter, reset_after
from voxcpm_server.rpc.open_calls import EndedByShutdown

log = logging.getLogger(__name__)

SERVICE = tts_pb2.DESCRIPTOR.services_by_name["VoxCPMService"].full_name

MAX_MESSAGE_BYTES = 1000  # bytes: percent-encoded, in base64 and repeated in a detail, a status stays under 8 kB
MAX_FIELD_BYTES = 200
DOMAIN = tts_pb2.DESCRIPTOR.package.partition(".")[0]  # the reasons of errors have this domain
MAX_VOICE_CHARS = 100  # characters of a voice in a log line


def rpc(
    *, stream: bool, speaks: bool = False, name: str = ""
) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
    """Wraps a servicer method `(self, request or iterator, call)`.

    stream: True if the client sends a stream of messages
    speaks: True for a call of one message that counts as a stream, because an engine works for it
    name: of the method in logs and metrics; empty for that of the function

    `self.authenticator` identifies the caller, before anything is read; `self.calls` and `self.gate` admit the call;
    `self.write_seconds` is the longest wait for a caller that does not read; `self.metrics` counts the call, and
    `self.tracing` traces it, if they are not None.
    """

    def decorate(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(method)
        async def handler(self: Any, request: Any, context: grpc.aio.ServicerContext) -> Any:
            call = Call(
                name or method.__name__, context, Peer.of(context.peer()), ReplyWriter(context, self.write_seconds)
            )
            messages = RequestStream(request) if stream else None
            result: Any = None
            error: VoxCPMError | None = None
            try:
                result = await _admitted(self, method, request, messages, call, speaks=speaks)
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    # gRPC has cancelled it: a cancel, a deadline or a lost connection.
                    _end(self.metrics, call, "CANCELLED")
                    raise
                # Without a status the caller would wait forever.
                log.error(LogLine("cancelled by the server's own code", request_id=call.request_id, method=call.method))
                error = Internal()
            except Exception as caught:
                error = _error_of(caught, call)
            finally:
                call.replies.close()
            told = error or call.told
            _end(self.metrics, call, code_of(told) if told else "OK", told)
            if messages is not None and error:
                # The connection of a server that ends is cut off soon, and a caller who was refused gets no more than a
                # moment.
                await messages.linger(uploads=lambda: call.admitted and not self.calls.refused)
            if self.calls.refused:  # the server drains; while it starts, there are no replies
                await call.replies.wait_for_acknowledgement()
            if messages is not None:
                messages.close()
            if error:
                return await _abort(call, error)
            reset_after(self.write_seconds)  # gRPC has yet to send the reply of a unary RPC
            return result

        return handler

    return decorate


async def _admitted(
    servicer: Any,
    method: Callable[..., Awaitable[Any]],
    request: Any,
    messages: RequestStream | None,
    call: Call,
    *,
    speaks: bool,
) -> Any:
    """Identify the caller, admit the call, and return the result of the servicer's method."""
    metadata = call.context.invocation_metadata() or ()
    if servicer.tracing is not None:
        call.trace = servicer.tracing.begin(call.method, metadata)
    if isinstance(request, MalformedMessage):
        raise request.error()
    async with servicer.calls.enter(call.method):
        principal = await servicer.authenticator.principal(metadata, call.context.auth_context)
        call.caller = Caller.of(principal, call.peer.caller)
        stream = speaks or messages is not None
        with servicer.gate.enter(call.caller.key, call.peer.connection, stream=stream):
            call.admitted = True
            log.debug(LogLine("admitted", method=call.method, peer=str(call.peer), streams=servicer.gate.streams))
            return await method(servicer, messages or request, call)


def _error_of(caught: Exception, call: Call) -> VoxCPMError:
    """The error that the caller gets. One of the server's own code is logged, and the caller is not told of it."""
    _release_at_end(caught)
    if isinstance(caught, EndedByShutdown):
        return _shutdown_error(caught.seconds, after_audio=call.audio_seconds > 0)
    if isinstance(caught, VoxCPMError):
        return caught
    log.exception(LogLine("rpc failed", request_id=call.request_id, method=call.method))
    return Internal()


async def _abort(call: Call, error: VoxCPMError) -> None:
    """End the RPC with the status of an error, or without one if the client does not read."""
    reset_after(min(STATUS_SECONDS, call.replies.shortened))
    try:
        if call.replies.header_is_stuck:
            await asyncio.get_running_loop().create_future()  # the reset ends this wait
        await call.context.abort(*status_of(error, call.request_id))
    except grpc.aio.AbortError as abort:  # gRPC's state of the RPC refers to the error
        _release_at_end(abort)
        raise
    except grpc.aio.BaseError:
        raise asyncio.CancelledError from None  # the connection ended before the status was sent


def _release_at_end(error: BaseException) -> None:
    """Clear the traceback of an error, and of those behind it, when the current task ends.

    Its frames refer to the call, and the call to the error, so that only the garbage collector would free them.
    """
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(lambda _: _release(error))


def _release(error: BaseException | None) -> None:
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        behind = error.__cause__ or error.__context__
        error.__traceback__ = error.__cause__ = error.__context__ = None
        error = behind


def _shutdown_error(seconds: float | None, *, after_audio: bool) -> VoxCPMError:
    """The error of a call that was still open at the end of the drain, or when a second signal cut it off."""
    if seconds is None:
        cause = "the server is shutting down, and a second signal has ended its open calls at once"
    else:
        cause = f"the server is shutting down, and this call did not end within its drain_seconds, {seconds:g} s"
    if after_audio:
        return Aborted(f"{cause}; the audio that was sent is good, ask again for the rest")
    return Unavailable(f"{cause}; no audio was sent, retry elsewhere", retry_after=0.0, reason=Reason.SHUTTING_DOWN)


def parsed(message: type[Message], data: bytes) -> Message | MalformedMessage:
    """The message in these bytes. One that cannot be parsed reaches `rpc`, so that the status has our error text."""
    try:
        return message.FromString(data)
    except DecodeError:
        return MalformedMessage()


def status_of(error: VoxCPMError, request_id: str) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]:
    """The code, message and trailing metadata of an error: google.rpc.Status with details, and the retry pushback.

    An error that no other attempt can mend, with an infinite `retry_after`, gives no time.
    """
    code = grpc.StatusCode[code_of(error)]
    message = clean(error.message, MAX_MESSAGE_BYTES)
    details: list[Any] = [error_details_pb2.RequestInfo(request_id=clean(request_id, MAX_FIELD_BYTES))]
    if isinstance(error, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=clean(error.field, MAX_FIELD_BYTES), description=message
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.reason is not None:
        values = {name: clean(value, MAX_FIELD_BYTES) for name, value in error.details.items()}
        details.append(error_details_pb2.ErrorInfo(reason=error.reason.name, domain=DOMAIN, metadata=values))
        if (kind := MISSING.get(error.reason)) is not None:
            details.append(error_details_pb2.ResourceInfo(resource_type=kind, resource_name=values.get(kind, "")))
    seconds = error.retry_after
    if seconds is None and isinstance(error, Exhausted | Unavailable):
        seconds = STREAMS_RETRY_SECONDS
    if seconds is not None and math.isfinite(seconds):
        milliseconds = max(0, math.ceil(1000 * seconds))
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


def _end(metrics: Metrics | RecentCalls | None, call: Call, code: str, error: VoxCPMError | None = None) -> None:
    """Count a call that has ended, end its trace, and write its log line."""
    seconds = time.monotonic() - call.started
    queue_seconds = call.summary and call.summary.queue_seconds
    first_audio_seconds = call.summary and call.summary.first_audio_seconds
    if metrics is not None:
        metrics.ended(call, code, seconds)
    if call.trace is not None:
        call.trace.end(
            code,
            error,
            request_id=call.request_id,
            characters=call.characters,
            queue_seconds=queue_seconds,
            first_audio_seconds=first_audio_seconds,
            audio_seconds=call.audio_seconds,
        )
    failure: dict[str, str] = {"field": error.field, "error": clean(error.message, 300)} if error else {}
    trace = {"trace_id": call.trace.id} if call.trace else {}
    model = {"model": call.model} if call.logs_model and call.model else {}
    log.info(
        LogLine(
            "rpc",
            request_id=call.request_id,
            method=call.method,
            code=code,
            seconds=seconds,
            peer=str(call.peer),
            caller=call.caller.key,
            voice=call.voice[:MAX_VOICE_CHARS],
            characters=call.characters,
            queue_seconds=queue_seconds,
            first_audio_seconds=first_audio_seconds,
            audio_seconds=call.audio_seconds,
            **model,
            **trace,
            **failure,
        )
    )
