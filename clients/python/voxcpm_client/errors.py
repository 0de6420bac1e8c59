"""The errors of calls. SpeechError is the base class; each subclass stands for one gRPC status code."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RequestInfo, RetryInfo
from google.rpc.status_pb2 import Status

from voxcpm_client.status import trailers_of
from voxcpm_grpc.text.durations import duration_text


class SpeechError(Exception):
    """A call failed."""

    code: str = "UNKNOWN"
    """Name of the gRPC status code, such as `NOT_FOUND`."""

    message: str
    """The reason, in one sentence."""

    request_id: str
    """Id of the call in the server's log. Empty if it is not known. Default: `""`."""

    field: str
    """Path of the request field at fault, such as `config.turn.sampling.seed`. Empty if there is none.
    Default: `""`."""

    retry_after: float | None
    """Seconds after which the server asks the client to try again; infinity if it asks not to. None if it gives no
    time. Default: `None`."""

    about_connection: bool
    """True if the message is about the connection to the server, in words of this client and of gRPC, with the address
    of the server. Programs that pass errors on to others keep it to themselves. Default: `False`."""
    reason: str
    """Name of the reason, such as `VOICE_NOT_FOUND` (docs/errors.md has all). Empty if there is none. Default: `""`."""

    details: Mapping[str, str]
    """Values that belong to the reason by name, such as `limit`. Default: `None`, no values."""

    def __init__(
        self,
        message: str,
        *,
        request_id: str = "",
        field: str = "",
        retry_after: float | None = None,
        reason: str = "",
        details: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id
        self.field = field
        self.retry_after = retry_after
        self.about_connection = False
        self.reason = reason
        self.details = dict(details or {})

    def __str__(self) -> str:
        call = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.message}{call}"


class InvalidArgument(SpeechError):
    """The request is wrong and fails again if it is repeated. The client also raises this before it sends anything,
    for example for options that contradict each other."""

    code = "INVALID_ARGUMENT"


class NotFound(SpeechError):
    """The voice does not exist."""

    code = "NOT_FOUND"


class AlreadyExists(SpeechError):
    """The name is in use."""

    code = "ALREADY_EXISTS"


class FailedPrecondition(SpeechError):
    """The request is valid, but not for this model or this configuration of the server."""

    code = "FAILED_PRECONDITION"


class UnusableClient(FailedPrecondition, RuntimeError):
    """The client cannot be used here: it was closed, or it belongs to another event loop, or this process was forked
    from one that was using gRPC. The message names the case."""


class Unauthenticated(SpeechError):
    """The server needs credentials, or does not accept the ones given."""

    code = "UNAUTHENTICATED"


class PermissionDenied(SpeechError):
    """The credentials do not allow this call."""

    code = "PERMISSION_DENIED"


class Exhausted(SpeechError):
    """The server has no capacity left, and `retry_after` gives the time to try again. Without a time the call is too
    large, and no retry helps."""

    code = "RESOURCE_EXHAUSTED"


class Unavailable(SpeechError):
    """The server cannot be reached, is starting or shutting down, or has lost its engines."""

    code = "UNAVAILABLE"


class Aborted(SpeechError):
    """The stream could not go on after audio was sent: the server lost an engine or was shut down, or this program did
    not read its replies. The client does not repeat the call: the audio would start again from the beginning."""

    code = "ABORTED"


class DeadlineExceeded(SpeechError):
    """The call took longer than its `timeout`."""

    code = "DEADLINE_EXCEEDED"


class Cancelled(SpeechError):
    """The call was cancelled, or text was sent to a stream that had been finished or closed."""

    code = "CANCELLED"


class InternalError(SpeechError):
    """The server has a fault. Its log has the cause under the request id."""

    code = "INTERNAL"


class Unimplemented(SpeechError):
    """The server does not have this call; it may be of another version."""

    code = "UNIMPLEMENTED"


KINDS: Mapping[str, type[SpeechError]] = {kind.code: kind for kind in SpeechError.__subclasses__()}


NAMES: Mapping[int, str] = {code.value[0]: code.name for code in grpc.StatusCode if code is not grpc.StatusCode.OK}

CUT_OFF = ("CANCELLED", "UNKNOWN")
"""Status codes that a proxy sends when it loses the server behind it. The server itself sends neither of them, and a
call that this client cancels does not raise an error here."""

OVERWRITTEN = (*CUT_OFF, "UNAVAILABLE", "INTERNAL")
"""Status codes that grpcio gives a call whose stream is reset after its status has arrived, as by HAProxy, which resets
a stream that ends while its client has not half-closed."""

METADATA_TOO_LONG, MESSAGE_TOO_LARGE = "METADATA_TOO_LONG", "MESSAGE_TOO_LARGE"
"""Reasons for refusals of gRPC itself, which have none."""

RESET = "RST_STREAM"
TOO_LARGE = re.compile(r"message larger than max \((\d+) vs\. (\d+)\)")
GOING_AWAY = ("GOAWAY", "Cancelling all calls")  # the second is the text of a gRPC server that stops at once
LOST = (*GOING_AWAY, "Socket closed", "Connection reset", "Broken pipe", "keepalive", "Stream removed")


def from_rpc(
    error: grpc.aio.AioRpcError,
    *,
    target: str,
    request_id: str = "",
    timeout: float | None,
    answered: bool = False,
    advice: str = "",
) -> SpeechError:
    """The SpeechError for a failed RPC, with the details of its google.rpc.Status.

    answered: True if the server had sent a message before
    advice: about the way to the server, for calls that did not arrive there
    """
    code = error.code().name
    message = error.details() or code
    field, retry_after, reason, details = "", None, "", {}
    advice = advice and f"; {advice}"
    trailers = trailers_of(error)
    status = _status(trailers.get("grpc-status-details-bin"))
    if code in OVERWRITTEN and status.code in NAMES:
        code, message = NAMES[status.code], status.message
    for detail in status.details:
        kind = detail.TypeName()
        if kind == RequestInfo.DESCRIPTOR.full_name:
            request_id = RequestInfo.FromString(detail.value).request_id or request_id
        elif kind == BadRequest.DESCRIPTOR.full_name:
            violations = BadRequest.FromString(detail.value).field_violations
            field = violations[0].field if violations else ""
        elif kind == RetryInfo.DESCRIPTOR.full_name:
            retry_after = RetryInfo.FromString(detail.value).retry_delay.ToMilliseconds() / 1000
        elif kind == ErrorInfo.DESCRIPTOR.full_name:
            info = ErrorInfo.FromString(detail.value)
            reason, details = info.reason, dict(info.metadata)
    if (pushback := trailers.get("grpc-retry-pushback-ms")) is not None:
        retry_after = _pushback_seconds(pushback)
    if code == "DEADLINE_EXCEEDED" and timeout is not None:
        message = (
            f"the call did not end within its timeout of {duration_text(timeout)}; allow more with timeout{advice}"
        )
    elif status.details:
        pass
    elif code == Exhausted.code and (refused := _refusal(message)):
        message, reason = refused
    elif code in CUT_OFF or RESET in message:  # the server and proxies reset streams only if they cannot go on
        message = f"the connection was cut between client and server, and the server may have ended ({message})"
        code = Unavailable.code
    elif code == "UNAVAILABLE":  # the network reports it, not the server
        message = f"{_network_fault(message, target, answered)} ({message}){advice}"
    raised = KINDS.get(code, SpeechError)(
        message, request_id=request_id, field=field, retry_after=retry_after, reason=reason, details=details
    )
    raised.code = code
    raised.about_connection = not (status.details or reason)
    return raised


def _refusal(details: str) -> tuple[str, str] | None:
    """The sentence and the reason for a call that gRPC itself refused as too large; None for other details."""
    if "metadata size exceeds" in details:
        text = (
            "the headers of this call are longer than the server, or a proxy before it, reads; send a shorter "
            "credential, and fewer headers"
        )
        return text, METADATA_TOO_LONG
    if found := TOO_LARGE.search(details):
        text = f"the request has {found[1]} bytes and the limit is {found[2]}; send shorter or compressed recordings"
        return text, MESSAGE_TOO_LARGE
    return None


def _network_fault(details: str, target: str, answered: bool) -> str:
    connected = not details.startswith("failed to connect")
    when = "in mid-stream" if answered else "before the server answered"
    if connected and any(word in details for word in GOING_AWAY):
        return f"the server at {target} is shutting down; it ended the connection {when}"
    if answered or (connected and any(word in details for word in LOST)):
        return f"the connection to {target} was lost {when}; the server may have ended"
    return f"no server answers at {target}; is it running there?"


def _status(raw: str | bytes | None) -> Status:
    try:
        return Status.FromString(raw) if isinstance(raw, bytes) else Status()
    except DecodeError:  # a proxy has sent it; the code and the message are still useful
        return Status()


def _pushback_seconds(value: str | bytes) -> float:
    """The value in seconds. By gRPC's rule, a negative or unreadable value forbids a retry: infinity."""
    try:
        delay = int(value)
    except ValueError:
        return math.inf
    return delay / 1000 if delay >= 0 else math.inf
