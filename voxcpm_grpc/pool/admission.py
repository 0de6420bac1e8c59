"""The room of replicas for calls, and the refusals of new streams that the front decides before an engine would."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import monotonic

from voxcpm_grpc.errors import QueueFull, QueueTooLong
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.pool.balancer import READING_STEPS, Room
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.pool.replica import Replica

logger = logging.getLogger(__name__)


def queue_error(call: EngineCall, loads: Mapping[Replica, tuple[Room, float]]) -> QueueFull | None:
    """The error of a new stream if the queues of all engines are full: they would refuse it only after a step.

    One whose text is open may not need a place in a queue for a while. The engine refuses it when it does.
    """
    if call.text_is_open:
        return None
    if any(room is not Room.NONE for room, _ in loads.values()):
        return None
    logger.debug(
        LogLine(
            "refused: the queues of all engines are full",
            request_id=call.log_id,
            call=call.name,
            engines=len(loads),
        )
    )
    limit = next((replica.info.max_queue for replica in loads if replica.info), None)
    return QueueFull(min(replica.queued(is_batch=call.is_batch) for replica in loads), limit or 0)


def deadline_error(call: EngineCall, replica: Replica, room: Room) -> QueueTooLong | None:
    """The error of a new stream if its deadline ends before its engine, which has this room, has a slot for it."""
    if room is Room.SLOT or call.deadline is None or not (wait := replica.queue_seconds(is_batch=call.is_batch)):
        return None
    remaining = call.deadline - monotonic()
    if remaining >= wait:
        return None
    logger.debug(
        LogLine(
            "refused: the deadline ends before a slot is free",
            request_id=call.log_id,
            call=call.name,
            wait=wait,
            remaining=remaining,
        )
    )
    return QueueTooLong(wait, remaining)


def load_for(call: EngineCall, replica: Replica) -> tuple[Room, float]:
    """The load of a replica as a new call meets it, which may have to wait until its adapter is read."""
    room, work = replica.load(is_batch=call.is_batch)
    return room, work + (READING_STEPS if call.adapter and call.adapter not in replica.adapters else 0.0)
