"""The HTTP gateway beside a server: a process of its own, which is started again if it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType

from voxcpm_grpc.aio.event_loops import freeze_objects, loop_factory
from voxcpm_grpc.aio.tasks import cancel_and_wait, keep_running
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.helper_process import SPAWN
from voxcpm_grpc.ipc.process import set_up
from voxcpm_grpc.ipc.socket_folder import SocketFolder
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.network.addresses import is_unix, listen_address
from voxcpm_grpc.settings.http import HttpSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_server.auth.principal import certificate_names

log = logging.getLogger(__name__)

INSTALL = "pip install 'voxcpm-grpc[http]'"
NAME = "gateway"
STOP_SECONDS = 15.0  # seconds: more than the gateway gives its requests


@dataclass(frozen=True, slots=True)
class Upstream:
    """The gRPC server.

    target: its address for the gateway, not encrypted
    port: that of its other callers; 0 if they have another kind of address, or any free port
    tls: True if that port is encrypted
    """

    target: str
    port: int
    tls: bool


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway: its address, and the Unix socket on which it reaches the server."""

    address: str
    upstream: str


@asynccontextmanager
async def gateway_beside(settings: Settings, metrics: Path | None) -> AsyncIterator[Gateway | None]:
    """Run the gateway of a server for the duration of the block; None without `http.listen`. Raises StartupError.

    metrics: folder in which the gateways of all fronts keep their metrics, so that each shows the sums
    """
    if not settings.http.listen:
        yield None
        return
    with closing(SocketFolder()) as sockets:
        target = f"unix:{sockets.path / 'grpc'}"
        names = certificate_names(settings.tls.cert) if settings.tls.cert else ()
        allowing = settings.http.model_copy(update={"allowed_hosts": (*settings.http.allowed_hosts, *names)})
        upstream = Upstream(target, _port(settings.listen), settings.tls.cert is not None)
        shared = settings.fronts_share_port
        async with served(allowing, upstream, settings.log, shared=shared, metrics=metrics) as address:
            yield Gateway(address, target)


def _port(listen: str) -> int:
    """The port of an address to listen on; 0 for a Unix socket."""
    return 0 if is_unix(listen) else listen_address(listen).port


@asynccontextmanager
async def served(
    settings: HttpSettings, upstream: Upstream, log_options: LogOptions, *, shared: bool, metrics: Path | None = None
) -> AsyncIterator[str]:
    """Run a gateway for the duration of the block, and yield its address. Raises StartupError.

    This process holds the socket, so that a gateway that is started again finds the connections that wait.

    shared: other fronts listen on the same port
    metrics: folder in which the gateways of all fronts keep their metrics, so that each shows the sums
    """
    serving = _gateway()
    opened: socket.socket = serving.listening(settings.listen or "", shared=shared)
    try:
        start = partial(_process, settings, upstream, log_options, opened, metrics)
        running = keep_running(partial(_supervise, start, metrics), "the HTTP gateway")
        try:
            yield serving.address_of(opened)
        finally:
            await cancel_and_wait(running)
    finally:
        opened.close()


def _gateway() -> ModuleType:
    try:
        from voxcpm_gateway import serving
    except ModuleNotFoundError:
        raise StartupError(f"http.listen needs packages: {INSTALL}") from None
    return serving


def _process(
    settings: HttpSettings, upstream: Upstream, log_options: LogOptions, opened: socket.socket, metrics: Path | None
) -> SpawnProcess:
    return SPAWN.Process(target=_run, args=(settings, upstream, log_options, opened, metrics), name=NAME, daemon=True)


async def _supervise(start: Callable[[], SpawnProcess], metrics: Path | None) -> None:
    """Run the process until this task is cancelled; then end it. Raises RuntimeError if the process ends by itself."""
    process, ended = start(), asyncio.Event()
    await asyncio.to_thread(process.start)  # the start blocks while it spawns
    loop = asyncio.get_running_loop()
    loop.add_reader(process.sentinel, ended.set)
    try:
        await ended.wait()
        process.join()
        raise RuntimeError(f"the process of the HTTP gateway ended with status {process.exitcode}")
    except asyncio.CancelledError:
        process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await ended.wait()
        raise
    finally:  # a second cancellation waits for nothing, and gets here, too
        loop.remove_reader(process.sentinel)
        process.kill()
        process.join()
        if metrics is not None:
            _forget_open_requests(process.pid, metrics)
        process.close()


def _forget_open_requests(pid: int | None, metrics: Path) -> None:
    """Take the open requests of a gateway that has ended out of the sums. What it has counted stays."""
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(pid, str(metrics))


def _run(
    settings: HttpSettings, upstream: Upstream, log_options: LogOptions, opened: socket.socket, metrics: Path | None
) -> None:
    """The main function of the gateway's process."""
    if metrics is not None:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)  # the import of prometheus-client reads it
    from voxcpm_gateway import serving
    from voxcpm_gateway.config import GatewayConfig, ServerConnection

    set_up(log_options)
    config = GatewayConfig(
        server=ServerConnection(target=upstream.target, timeout=settings.timeout_seconds),
        voice_aliases=settings.aliases,
        allowed_hosts=settings.allowed_hosts,
        allowed_origins=settings.allowed_origins,
        allow_ref_audio_urls=settings.allow_ref_audio_urls,
        metrics_folder=metrics,
        grpc_port=upstream.port,
        grpc_tls=upstream.tls,
    )
    freeze_objects()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serving.serve_until_signal(config, opened, signal.SIGTERM))
