"""Several server processes, fronts, that share the engines, the voices and the ports of their host."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from voxcpm_grpc import progress
from voxcpm_grpc.aio.event_loops import loop_factory
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.ipc.sockets import Addresses
from voxcpm_grpc.network.addresses import MAX_PORT, ListenAddress, bound, cannot_listen, is_unix, listen_address
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.host import Host
from voxcpm_grpc.pool.engines.host_link import connected_to_host, set_up
from voxcpm_grpc.pool.engines.local import LocalEngines
from voxcpm_grpc.settings.models import models
from voxcpm_grpc.settings.operation import MetricsSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.worker.standby import StandbyProcess
from voxcpm_server.app import running_server
from voxcpm_server.engines import found_models, local_engines
from voxcpm_server.operation.merged_metrics import MergedMetrics, metrics_page, new_registry
from voxcpm_server.stages import METRICS
from voxcpm_server.start import StartLog

log = logging.getLogger(__name__)

SCRAPE_SECONDS = 5.0  # seconds for the answers of all fronts
NO_SHARED_PORTS = (
    "this system does not let processes share a port; set front_ports to consecutive, without admin.listen, or fronts "
    "to 1"
)


@dataclass(frozen=True, slots=True)
class RunningFronts:
    """Fronts that accept calls, and their host. `address` has the real port, or those of all fronts."""

    address: str
    host: Host


@asynccontextmanager
async def running_fronts(
    settings: Settings,
    directories: Sequence[Path | None] = (),
    engines: Sequence[LocalEngines] | None = None,
    standby: StandbyProcess | None = None,
) -> AsyncIterator[RunningFronts]:
    """Serve with `settings.fronts` processes inside the block, then drain them. Raises StartupError.

    directories: the checkpoint of each model that this host has without a download
    engines: of each model, to use instead of those that the settings describe
    standby: the process in which the first engine starts
    """
    if settings.pool != "processes":
        raise StartupError("fronts share the engines of their host; on Ray, run several servers on one cluster instead")
    if (settings.voices.url or "").startswith("memory:"):
        raise StartupError("voices.url is in memory, where fronts do not see each other's voices; name a folder")
    with progress.reported_to(StartLog().write), reserved_ports(settings) as each:
        served = models(settings)
        found: Sequence[Path | None] = [None] * len(served)
        if engines is None:
            found = checkpoints = await found_models(served, directories)
            engines = local_engines(served, checkpoints, standby)
        host = Host(engines, settings.supervision)
        with _metrics(settings, host) as metrics, _http_metrics(settings) as http_metrics:
            fronts = {
                f"front {number}": ServeFront(
                    settings=one.model_copy(update={"metrics": metrics}),
                    directories=tuple(found),
                    engines=tuple(map(tuple, engines)),
                    http_metrics=http_metrics,
                )
                for number, one in enumerate(each)
            }
            try:
                await host.start(fronts, drain_seconds=settings.drain_seconds)
                yield RunningFronts(",".join(dict.fromkeys(one.listen for one in each)), host)
            finally:
                await host.close()


@contextmanager
def _metrics(settings: Settings, host: Host) -> Iterator[MetricsSettings]:
    """Serve the metrics of all fronts inside the block, and return their settings with the real address.

    Raises StartupError.
    """
    if settings.metrics.listen is None:
        yield settings.metrics
        return
    loop = asyncio.get_running_loop()

    async def ask() -> tuple[Mapping[str, str], Mapping[str, bytes]]:
        answers = await host.questions.ask(METRICS)
        return host.fronts, answers

    registry = new_registry()
    registry.register(MergedMetrics(lambda: asyncio.run_coroutine_threadsafe(ask(), loop).result(SCRAPE_SECONDS)))
    with metrics_page(registry, settings.metrics.listen) as address:
        log.info("metrics are at http://%s/metrics", address)
        yield settings.metrics.model_copy(update={"listen": address})


@contextmanager
def _http_metrics(settings: Settings) -> Iterator[Path | None]:
    """A folder for the metrics of the gateways, if they share a port."""
    if settings.http.listen is None or not settings.fronts_share_port:
        yield None
        return
    with TemporaryDirectory(prefix="voxcpm-http-") as folder:
        yield Path(folder)


@dataclass(frozen=True, slots=True)
class ServeFront:
    """The main function of a front's process: serve with the host's engines until the host stops this front.

    directories, engines: of each model, its checkpoint and the names of its engines
    http_metrics: folder for the metrics of the gateways of all fronts
    """

    settings: Settings
    directories: tuple[Path | None, ...]
    engines: tuple[tuple[str, ...], ...]
    http_metrics: Path | None

    def __call__(self, addresses: Addresses, *, restarted: bool) -> None:
        set_up(self.settings.log)
        with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._serve(addresses, restarted))

    async def _serve(self, addresses: Addresses, restarted: bool) -> None:
        async with connected_to_host(addresses) as host:
            main = asyncio.current_task()
            assert main is not None
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
            try:
                server = running_server(
                    self.settings,
                    directories=self.directories,
                    pools=[EnginePool(host.engines(names)) for names in self.engines],
                    fronts=host.questions,
                    restarted=restarted,
                    http_metrics=self.http_metrics,
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
def reserved_ports(settings: Settings) -> Iterator[list[Settings]]:
    """The settings of each front, with the addresses that it listens on. Raises StartupError.

    The block holds the ports that fronts share, so that no other process takes one while a front restarts.
    """
    count = int(settings.fronts)
    with ExitStack() as stack:
        admin, http = settings.admin, settings.http
        listen = stack.enter_context(reserved(settings.listen, count, shared=settings.fronts_share_port))
        if admin.listen is not None:
            [address] = stack.enter_context(reserved(admin.listen, 1, shared=True))
            admin = admin.model_copy(update={"listen": address})
        if http.listen is not None and settings.fronts_share_port:
            [address] = stack.enter_context(reserved(http.listen, 1, shared=True))
            http = http.model_copy(update={"listen": address})
        yield [
            settings.model_copy(
                update={
                    "listen": address,
                    "admin": admin,
                    "http": http if settings.fronts_share_port else http.of_front(number),
                }
            )
            for number, address in enumerate(listen)
        ]


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
        raise StartupError(NO_SHARED_PORTS)
    [address] = _free(first)
    with closing(bound(address, shared=True)):
        yield [address] * count


def _free(*addresses: ListenAddress) -> list[str]:
    """The addresses, with a free port for each 0, after a check that no process listens there, even to share them."""
    with ExitStack() as probes:
        sockets = [probes.enter_context(closing(bound(str(address)))) for address in addresses]
        ports = [probe.getsockname()[1] for probe in sockets]
    return [str(replace(address, port=port)) for address, port in zip(addresses, ports, strict=True)]
