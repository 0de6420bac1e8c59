"""Gives a running pool as many places as its load calls for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from voxcpm_grpc.pool.background import cancel_and_wait, keep_running
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.handle import Launch
from voxcpm_grpc.pool.ray.scaler import Bounds, Load, Scaler
from voxcpm_grpc.pool.replica import Replica

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
DRAIN_SECONDS = 600.0  # for the streams of an engine that is to go


async def autoscale(pool: EnginePool, next_launch: Callable[[], Launch], bounds: Bounds) -> None:
    """Add places to a started pool and take idle ones out, until cancelled. The pool's end is its owner's affair.

    A place that was given up is replaced while another engine lives, for the cluster may have room again; if none
    lives, it is left alone, so that the pool can say that it is over. May be begun again after a fault.
    """
    scaler = Scaler(bounds)
    removals: dict[Replica, asyncio.Task[None]] = {}

    def remove(place: Replica, seconds: float) -> None:
        removals[place] = keep_running(lambda: pool.remove(place, seconds=seconds), f"the removal of {place.name}")

    try:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            removals = {place: task for place, task in removals.items() if not task.done()}
            for place in [place for place in pool.places if place.leaving and place not in removals]:
                remove(place, DRAIN_SECONDS)  # it was given up halfway
            if pool.healthy:
                for place in [place for place in pool.places if place.given_up and not place.leaving]:
                    remove(place, 0.0)
            load = _load(pool)
            wanted = scaler.wanted(load, asyncio.get_running_loop().time())
            if wanted != load.engines:
                logger.info(
                    "from %d to %d engines: streams=%d waiting=%d", load.engines, wanted, load.streams, load.waiting
                )
            for _ in range(load.engines, wanted):
                pool.add(next_launch())
            idlest = sorted(_staying(pool), key=lambda place: (place.alive, place.work))
            for place in idlest[: max(0, load.engines - wanted)]:
                remove(place, DRAIN_SECONDS)
    finally:
        await cancel_and_wait(*removals.values())


def _staying(pool: EnginePool) -> list[Replica]:
    return [place for place in pool.places if not place.leaving and not (place.given_up and pool.healthy)]


def _load(pool: EnginePool) -> Load:
    staying = _staying(pool)
    streams = [[job for job in place.jobs.values() if job.is_stream] for place in staying]
    waiting = [sum(not job.began for job in jobs) for jobs in streams]
    room = any(place.alive and not count for place, count in zip(staying, waiting, strict=True))
    return Load(
        engines=len(staying),
        starting=sum(not place.alive for place in staying),
        streams=sum(map(len, streams)),
        waiting=0 if room else sum(waiting),  # what waits at one engine does not move, but others come to the next
        slots=pool.info.max_slots,
    )
