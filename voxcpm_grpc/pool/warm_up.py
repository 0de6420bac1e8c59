"""The first request of an engine, before a server takes requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from voxcpm_grpc.errors import StartupError, VoxCPMError
from voxcpm_grpc.events import Event
from voxcpm_grpc.ipc.messages import Submit
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.pool.replica import Replica
from voxcpm_grpc.request import ModelInfo, Request, Sampling

WARM_UP_TEXT, WARM_UP_STEPS = "One, two.", 2


async def try_out(replica: Replica, info: ModelInfo, new_id: Callable[[EngineCall], str]) -> None:
    """Generate a short piece of speech on a replica, unless it is lost already. Raises StartupError if that fails."""
    if not replica.ready:
        return
    first = {option.name: option.choices[0] for option in info.options if option.choices}
    sampling = replace(Sampling(min_steps=0, max_steps=WARM_UP_STEPS), **first)
    request = Request(id="warm-up", text=WARM_UP_TEXT, sampling=sampling)
    call: EngineCall[Event] = EngineCall(
        request.id,
        lambda call: Submit(replace(request, id=call.id), call.limit, WARM_UP_STEPS),
        work=WARM_UP_STEPS,
        window=WARM_UP_STEPS,
        wait_until=0.0,  # a start fails at once
    )
    name = replica.name
    replica.start(new_id(call), call)
    try:
        async with contextlib.aclosing(call) as events:
            async for _ in events:
                pass
    except VoxCPMError as error:
        raise StartupError(
            f"the warm-up request of {name} failed ({error.message}); the log of the engine may say why"
        ) from None
