"""The limits of what may wait in a Generate stream, beside its text."""

from __future__ import annotations

from collections.abc import Iterable

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_server.speech.queues import FlushDone, Interrupted, Silence

MAX_UNANSWERED = 1000  # flushes and interrupts
MAX_PAUSES = 1000


def check_unanswered(*queues: Iterable[object]) -> None:
    """Raise InvalidRequest if no more flushes and interrupts may wait for their replies."""
    waiting = sum(isinstance(item, FlushDone | Interrupted) for queue in queues for item in queue)
    if waiting >= MAX_UNANSWERED:
        raise InvalidRequest(
            f"{waiting} flushes and interrupts wait for their replies and the limit is {MAX_UNANSWERED}; "
            "read replies before sending more"
        )


def check_pauses(*queues: Iterable[object]) -> None:
    """Raise InvalidRequest if no more pauses may wait to be sent."""
    waiting = sum(isinstance(item, Silence) for queue in queues for item in queue)
    if waiting >= MAX_PAUSES:
        raise InvalidRequest(
            f"{waiting} pauses wait to be sent and the limit is {MAX_PAUSES}; read audio before sending more",
            field="pause",
        )
