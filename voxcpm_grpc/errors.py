"""The error types, with the gRPC status code and the reason of each.

A message is written for the caller of the API. It gives the cause, the number, the limit and the remedy. It contains no
path, no traceback and no text of another library's exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import ClassVar

from voxcpm_grpc.text.durations import duration_text


class Reason(Enum):
    """The reasons of errors, for programs. docs/errors.md describes them. Their names do not change."""

    # INVALID_ARGUMENT
    INVALID_REQUEST = auto()
    TOO_MANY_POSITIONS = auto()
    UNUSABLE_RECORDING = auto()
    # UNAUTHENTICATED
    CREDENTIAL_MISSING = auto()
    CREDENTIAL_INVALID = auto()
    TOKEN_EXPIRED = auto()
    # PERMISSION_DENIED
    ADMIN_REQUIRED = auto()
    # NOT_FOUND
    VOICE_NOT_FOUND = auto()
    PRESET_NOT_FOUND = auto()
    MODEL_NOT_FOUND = auto()
    LORA_NOT_FOUND = auto()
    SERVICE_NOT_FOUND = auto()
    ENGINE_NOT_FOUND = auto()
    # ALREADY_EXISTS
    LORA_EXISTS = auto()
    NAME_TAKEN = auto()
    # FAILED_PRECONDITION
    TIMESTEPS_NOT_SERVED = auto()
    REFERENCES_NOT_SUPPORTED = auto()
    STYLES_NOT_SUPPORTED = auto()
    LANGUAGES_NOT_SUPPORTED = auto()
    OPTION_NOT_SUPPORTED = auto()
    NOT_SUPPORTED_BY_MODEL = auto()
    SPEED_NOT_SUPPORTED = auto()
    VOICE_OF_ANOTHER_MODEL = auto()
    VOICE_MODEL_NOT_SERVED = auto()
    LATENTS_OF_ANOTHER_MODEL = auto()
    VOICE_DAMAGED = auto()
    VOICE_FORMAT_TOO_NEW = auto()
    TOO_MANY_NAMES = auto()
    PRESET_READ_ONLY = auto()
    LORA_OF_VOICE_MISSING = auto()
    LORA_LOST = auto()
    LORAS_DISABLED = auto()
    LORA_SOURCE_NOT_ALLOWED = auto()
    LORA_SOURCE_REFUSED = auto()
    LORA_CACHE_UNUSABLE = auto()
    PACKAGE_MISSING = auto()
    FILE_NOT_WRITTEN = auto()
    LAST_ENGINE = auto()
    # RESOURCE_EXHAUSTED
    TOO_MANY_STREAMS = auto()
    TOO_MANY_STREAMS_OF_CONNECTION = auto()
    TOO_MANY_STREAMS_OF_CALLER = auto()
    QUEUE_FULL = auto()
    QUEUE_TIMEOUT = auto()
    DEADLINE_TOO_SOON = auto()
    TEXT_QUOTA_USED_UP = auto()
    UPLOADS_TOO_LARGE = auto()
    UPLOADS_OF_CALLER_TOO_LARGE = auto()
    TOO_MANY_VOICES = auto()
    TOO_MANY_VOICES_OF_CALLER = auto()
    CREDENTIAL_TOO_LONG = auto()
    # UNAVAILABLE
    NOT_READY = auto()
    SHUTTING_DOWN = auto()
    NO_ENGINE = auto()
    VOICE_STORE_UNREACHABLE = auto()
    VOICE_STORE_BUSY = auto()
    WORKER_STOPPED = auto()
    LORA_SOURCE_UNREACHABLE = auto()
    # ABORTED
    AUDIO_BROKEN_OFF = auto()
    REPLIES_NOT_READ = auto()
    REGISTRATION_CANCELLED = auto()
    REQUEST_ENDED_ENGINES = auto()
    # INTERNAL
    INTERNAL_ERROR = auto()


MISSING: Mapping[Reason, str] = {
    Reason.VOICE_NOT_FOUND: "voice",
    Reason.PRESET_NOT_FOUND: "preset",
    Reason.MODEL_NOT_FOUND: "model",
    Reason.LORA_NOT_FOUND: "lora",
    Reason.SERVICE_NOT_FOUND: "service",
    Reason.ENGINE_NOT_FOUND: "engine",
    Reason.LORA_OF_VOICE_MISSING: "lora",
}
"""The kind of the thing that is missing, by reason. The details of the error have its name under the same word."""


class VoxCPMError(Exception):
    """The base of the errors for callers.

    field: path of the request field at fault; empty for none
    retry_after: seconds until another attempt; infinity if another attempt cannot succeed, None if it is not known
    reason: the reason for programs; None takes that of the class
    details: values that belong to the reason, by name
    """

    default_reason: ClassVar[Reason | None] = None

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        retry_after: float | None = None,
        reason: Reason | None = None,
        **details: object,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after = retry_after
        self.reason = reason or self.default_reason
        self.details = {name: str(value) for name, value in details.items()}

    def __reduce__(self) -> tuple[object, ...]:  # pickle needs it: subclasses may have other arguments than the base
        return _rebuild, (type(self), self.message, self.field, self.retry_after, self.reason, self.details)


def _rebuild(
    kind: type[VoxCPMError],
    message: str,
    field: str,
    retry_after: float | None,
    reason: Reason | None,
    details: Mapping[str, str],
) -> VoxCPMError:
    error = kind.__new__(kind)
    VoxCPMError.__init__(error, message, field=field, retry_after=retry_after, reason=reason, **details)
    return error


class InvalidRequest(VoxCPMError):
    """The request cannot succeed without a change."""

    default_reason = Reason.INVALID_REQUEST


class TooLong(InvalidRequest):
    """The request needs more KV positions than the engine has."""

    def __init__(self, positions: int, limit: int) -> None:
        super().__init__(
            f"the request needs {positions} positions and the engine has {limit}; shorten the text or the prompt, "
            "or lower max_steps",
            field="text",
            reason=Reason.TOO_MANY_POSITIONS,
            positions=positions,
            limit=limit,
        )

    @property
    def positions(self) -> int:
        """The positions that the request needs."""
        return int(self.details["positions"])

    @property
    def limit(self) -> int:
        """The positions that the engine has."""
        return int(self.details["limit"])


class NotFound(VoxCPMError):
    """This caller has no such voice, or the server has no such model or adapter."""


class AlreadyExists(VoxCPMError):
    """The name is in use."""


class Unauthenticated(VoxCPMError):
    """The caller has not proved who it is."""

    default_reason = Reason.CREDENTIAL_INVALID


class PermissionDenied(VoxCPMError):
    """This caller is known, but may not do this."""

    default_reason = Reason.ADMIN_REQUIRED


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
            reason=Reason.QUEUE_FULL,
            waiting=waiting,
            limit=limit,
        )


class QueueTooLong(Exhausted):
    """A request would not get a slot before its deadline."""

    def __init__(self, wait: float, remaining: float) -> None:
        remaining = max(0.0, remaining)
        super().__init__(
            f"the estimated wait for a slot is {duration_text(wait)} and the deadline is in "
            f"{duration_text(remaining)}; retry later, or with a longer deadline",
            retry_after=max(1.0, wait - remaining),
            reason=Reason.DEADLINE_TOO_SOON,
            wait_seconds=f"{wait:g}",
            deadline_seconds=f"{remaining:g}",
        )


class Unavailable(VoxCPMError):
    """The server drains, or the engine was lost before the first audio. A retry is safe."""


class Aborted(VoxCPMError):
    """The stream cannot go on: after audio an engine was lost or busy, or the client did not read. A retry would repeat
    that audio."""

    default_reason = Reason.AUDIO_BROKEN_OFF


def shutting_down() -> Unavailable:
    """The error of work that the end of the server cuts off."""
    return Unavailable("the server is shutting down", reason=Reason.SHUTTING_DOWN)


def broken_off(error: VoxCPMError) -> Aborted:
    """The error of a call that ends for this reason after it has delivered something, which a retry would repeat."""
    cause, _, _ = error.message.partition(";")  # the remedy is left out, which may be a retry
    text = f"{cause}, after audio was sent; what was sent is good, ask again for the rest"
    return Aborted(text, field=error.field)


class Internal(VoxCPMError):
    """A fault of the server. The message is generic; the cause is in the log."""

    default_reason = Reason.INTERNAL_ERROR

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


def from_code(
    code: str,
    message: str,
    *,
    field: str = "",
    retry_after: float | None = None,
    reason: str = "",
    details: Mapping[str, str] = MappingProxyType({}),
) -> VoxCPMError:
    """The error with this gRPC status code name, message and name of a reason."""
    known = Reason[reason] if reason else None
    kind = TooLong if known is Reason.TOO_MANY_POSITIONS else KINDS.get(code, Internal)
    return _rebuild(kind, message, field, retry_after, known, details)


def reason_of(error: VoxCPMError) -> str:
    """The name of the reason of an error; empty for none."""
    return error.reason.name if error.reason else ""
