"""Adds engines to a running pool and removes them, as its load requires."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from voxcpm_grpc.aio.tasks import cancel_and_wait, keep_running
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.supervised import Engine, SupervisedEngines
from voxcpm_grpc.pool.ray.scaler import Bounds, Load, Scaler
from voxcpm_grpc.pool.replica import Replica

E = TypeVar("E", bound=Engine)

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
DRAIN_SECONDS = 600.0  # seconds for the streams of a replica that is removed


async def autoscale(
    pool: EnginePool,
    engines: SupervisedEngines[E],
    next_engine: Callable[[], tuple[str, Callable[[], E]]],
    bounds: Bounds,
) -> None:
    """Scale the engines of a started pool until cancelled. May be called again after an error.

    `next_engine` returns the name of a new engine, and its factory. An engine that was given up is replaced while
    another one is ready, because the cluster may have room again. If none is ready it stays, so that the pool can
    report its end.
    """
    scaler = Scaler(bounds)
    removals: dict[Replica, asyncio.Task[None]] = {}

    def remove(replica: Replica, seconds: float) -> None:
        async def run() -> None:
            await pool.drain(replica, seconds=seconds)
            await engines.remove(replica.name)

        removals[replica] = keep_running(run, f"the removal of {replica.name}")

    try:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            removals = {replica: task for replica, task in removals.items() if not task.done()}
            for replica in [one for one in pool.replicas if one.draining and one not in removals]:
                remove(replica, DRAIN_SECONDS)  # its removal was interrupted
            if pool.healthy:
                for replica in [one for one in pool.replicas if one.given_up and not one.draining]:
                    remove(replica, 0.0)
            load = _load(pool)
            wanted = scaler.wanted(load, asyncio.get_running_loop().time())
            if wanted != load.engines:
                logger.info(
                    "from %d to %d engines: streams=%d waiting=%d", load.engines, wanted, load.streams, load.waiting
                )
            for _ in range(load.engines, wanted):
                engines.add(*next_engine())
            least_busy = sorted(_remaining(pool), key=lambda replica: (replica.ready, replica.load()[1]))
            for replica in least_busy[: max(0, load.engines - wanted)]:
                remove(replica, DRAIN_SECONDS)
    finally:
        await cancel_and_wait(*removals.values())


def _remaining(pool: EnginePool) -> list[Replica]:
    return [one for one in pool.replicas if not one.draining and not (one.given_up and pool.healthy)]


def _load(pool: EnginePool) -> Load:
    remaining = _remaining(pool)
    streams = [[call for call in replica.calls if call.is_stream and not call.paused] for replica in remaining]
    waiting = [sum(not call.admitted for call in calls) for calls in streams]
    has_room = any(replica.ready and not count for replica, count in zip(remaining, waiting, strict=True))
    return Load(
        engines=len(remaining),
        starting=sum(not replica.ready for replica in remaining),
        streams=sum(map(len, streams)),
        waiting=0 if has_room else sum(waiting),  # a request stays in the queue of its engine, but new ones have a slot
        slots=pool.info.max_slots,
    )
