"""One server: built from settings, started, and drained at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from voxcpm_grpc.aio.event_loops import freeze_objects
from voxcpm_grpc.machine.home import needed_home
from voxcpm_grpc.machine.memory import keep_freed_memory
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.settings.models import models
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.worker.standby import StandbyProcess
from voxcpm_server import stages
from voxcpm_server.contracts.known import contracts
from voxcpm_server.operation.host import Fronts
from voxcpm_server.services.server import RpcServer
from voxcpm_server.start import Start

VOICES_FOLDER = ".local/share/voxcpm-grpc/voices"  # the folder lies under the user's home
KEPT_BLOCK = 8 << 20  # bytes; the reports of a step are smaller
KEPT_BYTES = 64 << 20  # bytes of audio that were freed


@dataclass(frozen=True, slots=True)
class Running:
    """A server that accepts calls. `address` has the real port, `pools` the engines of each model."""

    address: str
    pools: Sequence[EnginePool]
    rpc: RpcServer

    @property
    def pool(self) -> EnginePool:
        """The engines of the default model."""
        return self.pools[0]

    async def ended(self) -> None:
        """Wait until a model has no engine and no attempt to start one."""
        waits = [asyncio.ensure_future(pool.closed_or_given_up()) for pool in self.pools]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def withdraw(self) -> None:
        """Report NOT_SERVING and serve new calls for `drain_delay_seconds`, so that load balancers can react.

        The end of the block of `running_server` then ends the calls in progress within the rest of `drain_seconds`.
        """
        await self.rpc.withdraw()


@asynccontextmanager
async def running_server(
    settings: Settings,
    *,
    directory: Path | None = None,
    directories: Sequence[Path | None] = (),
    standby: StandbyProcess | None = None,
    pool: EnginePool | None = None,
    pools: Sequence[EnginePool] = (),
    fronts: Fronts | None = None,
    restarted: bool = False,
    http_metrics: Path | None = None,
) -> AsyncIterator[Running]:
    """Run a server inside the block and drain it at the end, unless the block is cancelled. Raises StartupError.

    directory, directories: the checkpoint of the only model, or of each, with its presets; None finds it from the
        settings
    standby: the process in which the first engine of this host starts
    pool, pools: engines of the only model, or of each, to use instead of those that the settings describe, not yet
        started
    fronts: the other fronts, if the server is one of several; their host starts the engines and serves the metrics
    restarted: True for a front that was lost: its port opens when it is ready, and the others take the connections
    http_metrics: folder for the metrics of the gateways of all fronts
    """
    served = models(settings)
    plan = stages.Plan(
        settings,
        served,
        voices=settings.voices.url or str(needed_home("set voices.url to a place for voices") / VOICES_FOLDER),
        directories=directories or [directory] * len(served),
        standby=standby,
        pools=pools or ([] if pool is None else [pool]),
        contracts=contracts(settings.contracts),
        fronts=fronts,
        restarted=restarted,
        http_metrics=http_metrics,
    )
    async with _running(plan) as running:
        yield running


@asynccontextmanager
async def _running(plan: stages.Plan) -> AsyncIterator[Running]:
    """Enter the stages of the start. Their ends, from the last to the first, are those of the shutdown."""
    start = Start(engine_lines=plan.fronts is None)
    with start.reported():
        async with (
            stages.files_read(plan) as files,
            stages.engines_elsewhere(plan) as elsewhere,
            stages.observed(plan) as observation,
            stages.ports_open(plan, files, observation, start) as ports,
            stages.processes_started(plan, elsewhere) as processes,
            stages.voices_loaded(plan, files, processes) as voices,
        ):
            service = stages.made_service(plan, files, observation, ports, processes, voices)
            stages.export_statistics(observation, ports, processes, voices, service)
            freeze_objects()
            keep_freed_memory(block=KEPT_BLOCK, unused=KEPT_BYTES)
            address = await stages.accept_calls(plan, ports, service, voices.models)
            start.finish()
            await stages.log_summary(plan, observation, ports, voices, address)
            async with stages.drained(ports.rpc, voices.models):
                yield Running(address, processes.engines.pools, ports.rpc)
