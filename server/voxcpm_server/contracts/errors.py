"""Errors in the words of a contract."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from voxcpm_grpc.errors import InvalidRequest, NotFound, Reason, VoxCPMError, from_code, reason_of

OURS = {"config": "", "turn": ""}  # a contract lacks these fields
MISSING = (Reason.VOICE_NOT_FOUND, Reason.PRESET_NOT_FOUND, Reason.MODEL_NOT_FOUND)


def refused(field: str, because: str) -> InvalidRequest:
    """The error for a field that this server does not have. `because` says why, and what to use instead."""
    return InvalidRequest(f"{field} is not supported: {because}", field=field)


@contextmanager
def in_words_of(fields: Mapping[str, str]) -> Generator[None]:
    """Name the fields of a contract in the errors that the block raises.

    A voice or a model that does not exist becomes InvalidRequest, which the clients of all contracts expect.

    fields: paths of our fields, and the paths that stand for them and for the fields inside; errors about its own
        fields stay as they are
    """
    try:
        yield
    except VoxCPMError as error:
        if error.field in fields:
            old, new = (path.rpartition(".")[2] for path in (error.field, fields[error.field]))
            error.message = re.sub(rf"^{re.escape(old)}\b", new, error.message)  # elsewhere it is a word
        error.field = _renamed(error.field, OURS | dict(fields))
        if not isinstance(error, NotFound) or error.reason not in MISSING:
            raise
        raise from_code(
            "INVALID_ARGUMENT", error.message, field=error.field, reason=reason_of(error), details=error.details
        ) from None


def _renamed(path: str, fields: Mapping[str, str]) -> str:
    """The field of the contract for a path, or for the nearest one around it; the path itself if there is none.

    An entry of a list keeps its index.
    """
    outer = path
    while outer:
        name, bracket, index = outer.partition("[")
        if name in fields:
            return fields[name] + bracket + index
        outer = outer.rpartition(".")[0]
    return path
