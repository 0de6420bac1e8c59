"""The error types, and the gRPC status code of each.

A message is written for the caller of the API. It gives the cause, the number, the limit and the remedy. It contains no
path, no traceback and no text of another library's exception.
"""

from __future__ import annotations


class VoxCPMError(Exception):
    """The base of the errors for callers. `field` is the invalid field of the request, `retry_after` is in seconds."""

    def __init__(self, message: str, *, field: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:  # for pickle: subclasses may have other arguments than the base
        return _rebuild, (type(self), self.message, self.field, self.retry_after)


def _rebuild(kind: type[VoxCPMError], message: str, field: str, retry_after: float | None) -> VoxCPMError:
    error = kind.__new__(kind)
    VoxCPMError.__init__(error, message, field=field, retry_after=retry_after)
    return error


class InvalidRequest(VoxCPMError):
    """The request cannot succeed without a change."""


class TooLong(InvalidRequest):
    """The request needs more KV positions than the engine has, the numbers `positions` and `limit`."""

    def __init__(self, positions: int, limit: int) -> None:
        self.positions = positions
        self.limit = limit
        super().__init__(
            f"the request needs {positions} positions and the engine has {limit}; shorten the text or the prompt, "
            "or lower max_steps",
            field="text",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return TooLong, (self.positions, self.limit)


class NotFound(VoxCPMError):
    """This caller has no such voice."""


class AlreadyExists(VoxCPMError):
    """The name is in use."""


class Unauthenticated(VoxCPMError):
    """The caller has not proved who it is."""


class PermissionDenied(VoxCPMError):
    """This caller is known, but may not do this."""


class FailedPrecondition(VoxCPMError):
    """The request is valid, but this server is not configured for it."""


class Exhausted(VoxCPMError):
    """There is no capacity now. `retry_after` is the time until another attempt."""


class QueueFull(Exhausted):
    """The queue of an engine is full."""

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(
            f"all slots are in use and {waiting} requests wait, the limit is {limit}; try again later",
            retry_after=1.0,
        )


class QueueTooLong(Exhausted):
    """A request would not get a slot before its deadline."""

    def __init__(self, wait: float, remaining: float) -> None:
        super().__init__(
            f"the estimated wait for a slot is {wait:.1f} s and the deadline is in {max(0.0, remaining):.1f} s; "
            "retry later, or with a longer deadline",
            retry_after=max(1.0, wait - remaining),
        )


class Unavailable(VoxCPMError):
    """The server drains, or the engine was lost before the first audio. A retry is safe."""


class Aborted(VoxCPMError):
    """The stream cannot go on: after audio an engine was lost or busy, or the client did not read. A retry would repeat
    that audio."""


class Internal(VoxCPMError):
    """A fault of the server. The message is generic; the cause is in the log."""

    def __init__(self, message: str = "internal error; the server's log has the cause under this request id") -> None:
        super().__init__(message)


class StartupError(Exception):
    """The server cannot start, because of its settings or its checkpoint. The message may contain paths."""


CODES: dict[type[VoxCPMError], str] = {
    InvalidRequest: "INVALID_ARGUMENT",
    NotFound: "NOT_FOUND",
    AlreadyExists: "ALREADY_EXISTS",
    Unauthenticated: "UNAUTHENTICATED",
    PermissionDenied: "PERMISSION_DENIED",
    FailedPrecondition: "FAILED_PRECONDITION",
    Exhausted: "RESOURCE_EXHAUSTED",
    Unavailable: "UNAVAILABLE",
    Aborted: "ABORTED",
    Internal: "INTERNAL",
}
KINDS: dict[str, type[VoxCPMError]] = {code: kind for kind, code in CODES.items()}


def code_of(error: VoxCPMError) -> str:
    """The name of the gRPC status code of an error: that of its class or nearest base class in CODES."""
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), "INTERNAL")


def from_code(code: str, message: str, *, field: str = "", retry_after: float | None = None) -> VoxCPMError:
    """The error with this gRPC status code name and message."""
    return _rebuild(KINDS.get(code, Internal), message, field, retry_after)
