"""Everything that can go wrong on purpose, and the gRPC code each kind answers with.

A message is written for the caller: what was wrong, the number and the limit, the remedy. It never holds a path, a
traceback or the text of a foreign exception.
"""

from __future__ import annotations


class VoxCPMError(Exception):
    """Base of every error that a caller may see. `field` names the request field at fault, `retry_after` is seconds."""

    def __init__(self, message: str, *, field: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after = retry_after

    def __reduce__(self):  # subclasses may take other arguments than the base; processes exchange the result
        return _rebuild, (type(self), self.message, self.field, self.retry_after)


def _rebuild(kind: type[VoxCPMError], message: str, field: str, retry_after: float | None) -> VoxCPMError:
    error = kind.__new__(kind)
    VoxCPMError.__init__(error, message, field=field, retry_after=retry_after)
    return error


class InvalidRequest(VoxCPMError):
    """The request can never succeed as it is."""


class TooLong(InvalidRequest):
    """The request needs more KV positions than the engine holds."""

    def __init__(self, positions: int, limit: int) -> None:
        super().__init__(
            f"the request needs {positions} positions and the engine holds {limit}; shorten the text or the prompt, "
            "or lower max_steps",
            field="text",
        )


class NotFound(VoxCPMError):
    """No such voice for this caller."""


class FailedPrecondition(VoxCPMError):
    """Valid, but not on this server as it is configured."""


class Exhausted(VoxCPMError):
    """No capacity now; `retry_after` says when to come back."""


class Unavailable(VoxCPMError):
    """Draining, or the engine was lost before the first audio: safe to retry."""


class Aborted(VoxCPMError):
    """The engine was lost after audio was sent: a retry would speak twice."""


class Internal(VoxCPMError):
    """A fault of ours. The message stays generic; the cause belongs in the log."""

    def __init__(self, message: str = "internal error; the server's log has the cause under this request id") -> None:
        super().__init__(message)


class StartupError(Exception):
    """The server cannot start: bad settings, a bad checkpoint. For the operator, so it may name paths."""


CODES: dict[type[VoxCPMError], str] = {
    InvalidRequest: "INVALID_ARGUMENT",
    NotFound: "NOT_FOUND",
    FailedPrecondition: "FAILED_PRECONDITION",
    Exhausted: "RESOURCE_EXHAUSTED",
    Unavailable: "UNAVAILABLE",
    Aborted: "ABORTED",
    Internal: "INTERNAL",
}
KINDS: dict[str, type[VoxCPMError]] = {code: kind for kind, code in CODES.items()}


def code_of(error: VoxCPMError) -> str:
    """The gRPC status code name of an error: that of its nearest listed ancestor."""
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), "INTERNAL")


def from_code(code: str, message: str, *, field: str = "", retry_after: float | None = None) -> VoxCPMError:
    """The error that another process described by its code."""
    return _rebuild(KINDS.get(code, Internal), message, field, retry_after)
