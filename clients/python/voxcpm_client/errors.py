"""The errors of calls. SpeechError is the base class; each subclass stands for one gRPC status code."""

from __future__ import annotations

import math
from collections.abc import Mapping

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import BadRequest, RequestInfo, RetryInfo
from google.rpc.status_pb2 import Status


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

    def __init__(
        self, message: str, *, request_id: str = "", field: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id
        self.field = field
        self.retry_after = retry_after

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
    """The server has no capacity left. `retry_after` gives the time to try again."""

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


CUT_OFF = ("CANCELLED", "UNKNOWN")
"""Status codes that a proxy sends when it loses the server behind it. The server itself sends neither of them, and a
call that this client cancels does not raise an error here."""

RESET = "RST_STREAM"
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
    field, retry_after, advice = "", None, advice and f"; {advice}"
    trailers = dict(error.trailing_metadata() or ())
    status = _status(trailers.get("grpc-status-details-bin"))
    for detail in status.details:
        kind = detail.TypeName()
        if kind == RequestInfo.DESCRIPTOR.full_name:
            request_id = RequestInfo.FromString(detail.value).request_id or request_id
        elif kind == BadRequest.DESCRIPTOR.full_name:
            violations = BadRequest.FromString(detail.value).field_violations
            field = violations[0].field if violations else ""
        elif kind == RetryInfo.DESCRIPTOR.full_name:
            retry_after = RetryInfo.FromString(detail.value).retry_delay.ToMilliseconds() / 1000
    if (pushback := trailers.get("grpc-retry-pushback-ms")) is not None:
        retry_after = _pushback_seconds(pushback)
    if code == "DEADLINE_EXCEEDED" and timeout is not None:
        message = f"the call did not end within its timeout of {timeout:g} s; allow more with timeout{advice}"
    elif status.details:
        pass
    elif code in CUT_OFF or RESET in message:  # the server and proxies reset streams only if they cannot go on
        message = f"the connection was cut between client and server, and the server may have ended ({message})"
        code = Unavailable.code
    elif code == "UNAVAILABLE":  # from the network, not from the server
        message = f"{_network_fault(message, target, answered)} ({message}){advice}"
    raised = KINDS.get(code, SpeechError)(message, request_id=request_id, field=field, retry_after=retry_after)
    raised.code = code
    return raised


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
    except DecodeError:  # sent by a proxy; the code and the message are still useful
        return Status()


def _pushback_seconds(value: str | bytes) -> float:
    """The value in seconds. By gRPC's rule, a negative or unreadable value forbids a retry: infinity."""
    try:
        delay = int(value)
    except ValueError:
        return math.inf
    return delay / 1000 if delay >= 0 else math.inf
