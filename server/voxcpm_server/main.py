"""The command `serve`: one server process, or several fronts of one host."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from voxcpm_grpc import logs
from voxcpm_grpc.aio.event_loops import loop_factory
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.machine.cores import available_cores
from voxcpm_grpc.machine.gpus import visible_gpus
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.deprecated import deprecations
from voxcpm_grpc.settings.models import models, on_all_gpus
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.worker.standby import StandbyProcess
from voxcpm_server.app import running_server
from voxcpm_server.auth.exposure import exposure
from voxcpm_server.engines import models_here
from voxcpm_server.front_count import front_count
from voxcpm_server.fronts import running_fronts
from voxcpm_server.signals import Signals, end_now, is_aborted

log = logging.getLogger(__name__)


def serve(settings: Settings, standby: StandbyProcess | None = None) -> None:
    """Serve until SIGTERM or SIGINT arrives; a second signal does not wait for open streams.

    Prints one line to stdout when the server is ready. Raises StartupError with one line for the operator.

    standby: the process in which the first engine of this host starts
    """
    logs.set_up(settings.log)
    for number in (signal.SIGTERM, signal.SIGINT):
        # `Signals` replaces it; it also ends the process that counts GPUs.
        signal.signal(number, lambda *_: sys.exit(0))
    settings = _chosen(settings)
    if fault := exposure(settings):
        log.warning("%s", fault)
    for deprecation in deprecations(settings):
        log.warning("%s", deprecation)
    served = models(settings)
    directories = models_here(served) if settings.pool == "processes" else [None] * len(served)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(settings, directories, standby))
    except (asyncio.CancelledError, StartupError) as error:
        if isinstance(error, StartupError) and not is_aborted():
            raise
        end_now()  # a signal came during the start, or a second one came


def _chosen(settings: Settings) -> Settings:
    """The settings with the devices and the number of fronts that they leave to the server, which the log names."""
    served = models(settings)
    on_auto = any(engine.device == "auto" for one in served for engine in one.engines.values())
    gpus = visible_gpus() if on_auto and settings.pool == "processes" else 0
    chosen = on_all_gpus(settings, gpus)
    if chosen is not settings:
        log.info("devices: one engine on each of %d GPUs; --devices 0 takes one GPU", gpus)
        served = models(chosen)
    fronts = front_count(chosen, served, gpus=gpus, cores=available_cores())
    log.info("fronts: %d, %s; --fronts N sets another number", fronts.count, fronts.reason)
    if fronts.count > 1:
        streams, recordings = settings.limits.max_streams, settings.limits.max_upload_bytes_total
        log.info(
            "limits: each front has its own: max_streams %d, %d in all; max_upload_bytes_total %d, %d in all",
            *(streams, fronts.count * streams, recordings, fronts.count * recordings),
        )
    return chosen.model_copy(update={"fronts": fronts.count})


async def _serve(settings: Settings, directories: Sequence[Path | None], standby: StandbyProcess | None) -> None:
    signals = Signals()
    if settings.several_fronts:
        async with running_fronts(settings, directories, standby=standby) as running:
            _announce(settings, running.host.infos, running.address)
            running.host.skip_delay = await signals.wait(running.host.given_up()) is signal.SIGINT
        return
    async with running_server(settings, directories=directories, standby=standby) as running:
        _announce(settings, [pool.info for pool in running.pools], running.address)
        if await signals.wait(running.ended()) is signal.SIGTERM:
            await running.withdraw()  # after Ctrl-C a person waits, so this is left out


def _announce(settings: Settings, infos: Sequence[ModelInfo], address: str) -> None:
    """Print the line that reports a ready server. `infos` has the default model first."""
    devices = [device for one in models(settings) for device in one.engines]
    device = infos[0].device if len(devices) == 1 else ",".join(devices)
    names = ",".join(info.name for info in infos)
    print(f"listening on {address} model={names} device={device} dtype={infos[0].dtype}", flush=True)
