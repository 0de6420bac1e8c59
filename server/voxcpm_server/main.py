"""The command `serve`: one server process, or several that share the engines, the voices and the port of their host."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from voxcpm_grpc import logs, progress
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.ipc.child_process import Addresses
from voxcpm_grpc.listen_address import MAX_PORT, ListenAddress, bound, cannot_listen, is_unix, listen_address
from voxcpm_grpc.pool.host.attached import AttachedPool, connected_to_host, set_up
from voxcpm_grpc.pool.host.engine_host import EngineHost
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.models import models
from voxcpm_grpc.settings.schema import Settings
from voxcpm_server.app import running_server
from voxcpm_server.auth.exposure import exposure
from voxcpm_server.pools import engine_factories, found_models, models_here
from voxcpm_server.signals import Signals
from voxcpm_server.start import StartLog

log = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT arrives; a second signal does not wait for open streams.

    Prints one line to stdout when the server is ready. Raises StartupError with one line for the operator.
    """
    logs.set_up(settings.log)
    if fault := exposure(settings):
        log.warning("%s", fault)
    served = models(settings)
    directories = models_here(served) if settings.pool == "processes" else [None] * len(served)
    with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(settings, directories))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of a server: uvloop's if it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(settings: Settings, directories: Sequence[Path | None]) -> None:
    signals = Signals()
    if settings.fronts > 1:
        await _serve_fronts(settings, directories, signals)
        return
    async with running_server(settings, directories=directories) as running:
        _announce(settings, [pool.info for pool in running.pools], running.address)
        if await signals.wait(running.ended()) is signal.SIGTERM:
            await running.withdraw()  # not after Ctrl-C, for which a person waits


def _announce(settings: Settings, infos: Sequence[ModelInfo], address: str) -> None:
    """Print the line that reports a ready server. `infos` has the default model first."""
    devices = [device for one in models(settings) for device in one.engines]
    device = infos[0].device if len(devices) == 1 else ",".join(devices)
    names = ",".join(info.name for info in infos)
    print(f"listening on {address} model={names} device={device} dtype={infos[0].dtype}", flush=True)


async def _serve_fronts(settings: Settings, directories: Sequence[Path | None], signals: Signals) -> None:
    """Serve with `settings.fronts` processes until a signal arrives, then drain them. Raises StartupError."""
    if settings.pool != "processes":
        raise StartupError("fronts share the engines of their host; on Ray, run several servers on one cluster instead")
    if (settings.voices.url or "").startswith("memory:"):
        raise StartupError("voices.url is in memory, where fronts do not see each other's voices; name a folder")
    with (
        progress.reported_to(StartLog().write),
        reserved(settings.listen, settings.fronts, shared=settings.fronts_share_port) as addresses,
    ):
        served = models(settings)
        found = await found_models(served, directories)
        loras = [one.settings.engine.loras for one in served]
        host = EngineHost(engine_factories(served, found), settings.supervision, loras)
        fronts = {
            f"front {number}": partial(
                _run_front,
                settings=settings.model_copy(
                    update={
                        "listen": address,
                        "metrics": settings.metrics.of_front(number),
                        "admin": settings.admin.of_front(number),
                        "http": settings.http if settings.fronts_share_port else settings.http.of_front(number),
                    },
                ),
                engine_metrics=number == 0,
                directories=tuple(found),
                replicas=tuple(tuple(one.engines) for one in served),
            )
            for number, address in enumerate(addresses)
        }
        try:
            await host.start(fronts, drain_seconds=settings.drain_seconds)
            _announce(settings, host.infos, ",".join(dict.fromkeys(addresses)))
            host.skip_delay = await signals.wait(host.given_up()) is signal.SIGINT
        finally:
            await host.close()


def _run_front(
    addresses: Addresses,
    restarted: bool,
    settings: Settings,
    directories: tuple[Path, ...],
    replicas: tuple[tuple[str, ...], ...],
    engine_metrics: bool,
) -> None:
    """The main function of a front's process: serve with the host's engines until the host stops this front."""
    set_up(settings.log)
    with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve_front(addresses, restarted, settings, directories, replicas, engine_metrics))


async def _serve_front(
    addresses: Addresses,
    restarted: bool,
    settings: Settings,
    directories: tuple[Path, ...],
    replicas: tuple[tuple[str, ...], ...],
    engine_metrics: bool,
) -> None:
    async with connected_to_host(addresses) as host:
        main = asyncio.current_task()
        assert main is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
        try:
            pools = [AttachedPool(host, names) for names in replicas]
            # While a front restarts, the others take its share of the connections.
            server = running_server(
                settings,
                directories=directories,
                pools=pools,
                open_early=not restarted,
                log_engines=False,
                engine_metrics=engine_metrics,
                summarized=engine_metrics and not restarted,
            )
            async with server as running:
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, host.stopped.set)
                host.cut_off = main.cancel
                host.send_ready(running.pool.info)
                await host.stopped.wait()
                if not host.skip_delay:
                    await running.withdraw()
        except StartupError as error:
            host.send_start_failed(str(error))
            sys.exit(1)


@contextmanager
def reserved(listen: str, count: int, *, shared: bool) -> Iterator[list[str]]:
    """Addresses for `count` fronts: one port for all if `shared`, else consecutive ports. Raises StartupError.

    The block holds a shared port, so that no other process takes it while a front restarts.
    """
    if is_unix(listen):
        raise StartupError(f"fronts cannot listen on {listen}; name a host and a port, such as 127.0.0.1:50051")
    try:
        first = listen_address(listen)
    except ValueError as error:
        raise cannot_listen(listen, error) from None
    if not shared:
        if first.port + count - 1 > MAX_PORT:
            raise StartupError(
                f"{count} fronts need the ports from {first.port} on and the last port is {MAX_PORT}; "
                "listen on a lower one"
            )
        yield _free(*(replace(first, port=first.port and first.port + number) for number in range(count)))
        return
    if not hasattr(socket, "SO_REUSEPORT"):
        raise StartupError("this system does not let processes share a port; set front_ports to consecutive")
    [address] = _free(first)
    with closing(bound(address, shared=True)):
        yield [address] * count


def _free(*addresses: ListenAddress) -> list[str]:
    """The addresses, with a free port for each 0, after a check that no process listens there, even to share them."""
    with ExitStack() as probes:
        sockets = [probes.enter_context(closing(bound(str(address)))) for address in addresses]
        ports = [probe.getsockname()[1] for probe in sockets]
    return [str(replace(address, port=port)) for address, port in zip(addresses, ports, strict=True)]
