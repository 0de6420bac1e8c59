"""Schedulers and sequences without a device."""

import numpy as np

from voxcpm_grpc.engine.scheduling.adapters import Adapters
from voxcpm_grpc.engine.scheduling.blocks import BlockManager
from voxcpm_grpc.engine.scheduling.round import PrefillBudget
from voxcpm_grpc.engine.scheduling.scheduler import Scheduler
from voxcpm_grpc.engine.scheduling.sequence import Sequence
from voxcpm_grpc.models.base import Plan
from voxcpm_grpc.request import Priority, Request

PAGE = 4
STEP_SECONDS = 0.16
PLAYED = 1e9  # a time when all audio has been played


def sequence(name, length, steps, limit=10**6, continues=False, batch=False, speed=1.0):
    priority = Priority.BATCH if batch else Priority.INTERACTIVE
    request = Request(id=name, text="x", continues=continues, priority=priority, speed=speed)
    plan = Plan(positions=length, cacheable=0, max_steps=steps, own=None, numbers=np.zeros(0, np.int64))
    return Sequence(request=request, plan=plan, limit=limit, queued_at=0.0)


def scheduler(*, slots=4, pages=16, budget=8, most=None, max_queue=8, max_len=64, **options):
    return Scheduler(
        slots=slots,
        blocks=BlockManager(pages),
        page_size=PAGE,
        budget=PrefillBudget(budget, most or budget),
        max_queue=max_queue,
        max_len=max_len,
        step_seconds=STEP_SECONDS,
        adapters=Adapters(0, lambda directory: None),
        **options,
    )
