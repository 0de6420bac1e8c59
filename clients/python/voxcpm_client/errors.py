"""What can go wrong, as one tree: catch SpeechError for everything, a subclass for one kind."""

from __future__ import annotations

import math
from collections.abc import Mapping

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import BadRequest, RequestInfo, RetryInfo
from google.rpc.status_pb2 import Status


class SpeechError(Exception):
    """A call that failed.

    `code` is the gRPC status code's name, `request_id` finds the call in the server's log, `field` names the request
    field at fault, and `retry_after` is the wait in seconds that the server asks for (infinite: do not come back).
    """

    code = "UNKNOWN"

    def __init__(
        self, message: str, *, request_id: str = "", field: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id
        self.field = field
        self.retry_after = retry_after

    def __str__(self) -> str:
        where = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.message}{where}"


class InvalidArgument(SpeechError):
    """The request can never succeed as it is. Also raised before anything is sent, for options that contradict."""

    code = "INVALID_ARGUMENT"


class NotFound(SpeechError):
    """No such voice for this caller."""

    code = "NOT_FOUND"


class FailedPrecondition(SpeechError):
    """Valid, but not on this server as it is configured."""

    code = "FAILED_PRECONDITION"


class Unauthenticated(SpeechError):
    """The server wants credentials."""

    code = "UNAUTHENTICATED"


class PermissionDenied(SpeechError):
    """The credentials do not allow this."""

    code = "PERMISSION_DENIED"


class Exhausted(SpeechError):
    """No capacity now; `retry_after` says when to come back."""

    code = "RESOURCE_EXHAUSTED"


class Unavailable(SpeechError):
    """The server cannot be reached, is going away, or lost its engine."""

    code = "UNAVAILABLE"


class Aborted(SpeechError):
    """Lost after audio was received: the stream cannot be resumed, and nobody repeats it silently."""

    code = "ABORTED"


class DeadlineExceeded(SpeechError):
    """The call took longer than its `timeout`."""

    code = "DEADLINE_EXCEEDED"


class Cancelled(SpeechError):
    """The call was cancelled, or the stream was closed while in use."""

    code = "CANCELLED"


class InternalError(SpeechError):
    """A fault of the server; its log has the cause under the request id."""

    code = "INTERNAL"


class Unimplemented(SpeechError):
    """The server at that address does not know this call."""

    code = "UNIMPLEMENTED"


KINDS: Mapping[str, type[SpeechError]] = {kind.code: kind for kind in SpeechError.__subclasses__()}


CUT_OFF = ("CANCELLED", "UNKNOWN")
"""What a call ends with when a proxy has lost the server behind it, by a reset or without any status. The server says
neither, and a call that is cancelled on this side raises nothing here."""


def from_rpc(error: grpc.aio.AioRpcError, *, target: str, request_id: str = "", timeout: float | None) -> SpeechError:
    """The SpeechError behind a failed RPC, with what its google.rpc.Status details say."""
    code = error.code().name
    message = error.details() or code
    field, retry_after = "", None
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
        message = f"the call did not end within its timeout of {timeout:g} s; allow more with timeout"
    elif code in CUT_OFF and not status.details:
        message = f"the stream was cut off on its way, and the server probably lost ({message})"
        code = Unavailable.code
    elif code == "UNAVAILABLE" and not status.details:  # not the server's own words: the network's
        message = f"no server answers at {target}; is it running there? ({message})"
    raised = KINDS.get(code, SpeechError)(message, request_id=request_id, field=field, retry_after=retry_after)
    raised.code = code
    return raised


def _status(raw: str | bytes | None) -> Status:
    try:
        return Status.FromString(raw) if isinstance(raw, bytes) else Status()
    except DecodeError:  # a proxy's; the code and the message are still worth something
        return Status()


def _pushback_seconds(value: str | bytes) -> float:
    """gRPC's rule: a delay in milliseconds; anything negative or unreadable forbids a retry."""
    try:
        delay = int(value)
    except ValueError:
        return math.inf
    return delay / 1000 if delay >= 0 else math.inf
