"""One server: built from settings, started, and drained at its end."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from voxcpm_grpc import checkpoint, progress
from voxcpm_grpc.audio import DecodePool, codecs
from voxcpm_grpc.checkpoint import is_repository
from voxcpm_grpc.errors import StartupError, VoxCPMError
from voxcpm_grpc.pool.background import keep_running
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.ray.ray_pool import FindAndLoad, RayPool
from voxcpm_grpc.settings.schema import Settings, engines
from voxcpm_server.auth.authenticator import Authenticator
from voxcpm_server.download import download, find_model
from voxcpm_server.rpc.admin import AdminServer
from voxcpm_server.rpc.call import AdmissionGate
from voxcpm_server.rpc.handler import SERVICE
from voxcpm_server.rpc.metrics import Metrics
from voxcpm_server.rpc.server import RpcServer
from voxcpm_server.rpc.service import VoxCPMService
from voxcpm_server.rpc.tracing import Tracing
from voxcpm_server.start import Start
from voxcpm_server.summary import summary
from voxcpm_server.voices import presets
from voxcpm_server.voices.builder import VoiceBuilder
from voxcpm_server.voices.catalog import VoiceCatalog
from voxcpm_server.voices.store.io_threads import IoThreads
from voxcpm_server.voices.store.objects import Objects
from voxcpm_server.voices.store.store import VoiceStore

log = logging.getLogger(__name__)

VOICES_FOLDER = ".local/share/voxcpm-grpc/voices"  # under the user's home
GC_THRESHOLD = 10_000  # new objects between two collections; Python's 700 cost a loaded front 8 % in a profile


@dataclass(frozen=True, slots=True)
class Running:
    """A server that accepts calls. `address` has the real port."""

    address: str
    pool: EnginePool
    rpc: RpcServer

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
    pool: EnginePool | None = None,
    open_early: bool = True,
    log_engines: bool = True,
    engine_metrics: bool = True,
    summarized: bool = True,
) -> AsyncIterator[Running]:
    """Run a server inside the block and drain it at the end, unless the block is cancelled. Raises StartupError.

    directory: the checkpoint, with its presets; None finds it from the settings
    pool: engines to use instead of those that the settings describe, not yet started
    open_early: open the port at once, and refuse calls while the model loads; False opens it when the server is ready
    log_engines: False if another process starts the engines, and logs their steps
    engine_metrics: False if another process exports the metrics of the same engines
    summarized: True if the log shows a summary of the server when it is ready
    """
    async with AsyncExitStack() as stack:
        # A pool that a program has made says nothing about later starts; that of a front is the host's.
        start = Start(settings, engine_lines=log_engines, recorded=pool is None or not log_engines)
        stack.enter_context(start.reported())
        authenticator = Authenticator(settings)
        await authenticator.open()
        threads = IoThreads()
        stack.callback(threads.close)
        if pool is None and settings.pool == "ray":
            pool = _ray_pool(settings)
            directory = _local_model(settings)
            stack.push_async_callback(pool.close)
            progress.report("the Ray cluster is joined")
            await pool.join()
        metrics_address: str | None = None
        metrics = Metrics() if settings.metrics.listen else None
        if metrics is not None:
            metrics_address = stack.enter_context(metrics.served(settings.metrics.listen or ""))
            log.info("metrics are at http://%s/metrics", metrics_address)
        tracing = None
        if settings.tracing.endpoint:
            tracing = Tracing(settings.tracing, SERVICE)
            stack.push_async_callback(tracing.close)
        rpc = RpcServer(settings, expected_seconds=start.remaining, metrics=metrics, tracing=tracing)
        start.report = rpc.report_start
        admin, admin_address = None, None
        if settings.admin.listen:
            admin = AdminServer(settings, rpc, authenticator)
            admin_address = await admin.open()
            log.info("the admin service listens on %s", admin_address)
            stack.push_async_callback(admin.stop)
        stack.push_async_callback(rpc.stop)
        address = ""
        if open_early:
            address = await rpc.open()
            log.info("start: the port %s is open; calls are refused until the server is ready", address)
        if pool is None:
            directory = directory or await _found_model(settings)
            pool = EnginePool.of_processes(
                directory, model_name(settings), engines(settings), settings.supervision, log=settings.log
            )
        stack.push_async_callback(pool.close)
        progress.report("the model is loading")
        decoder = DecodePool(settings.decode_workers, log=settings.log)
        stack.push_async_callback(decoder.close)
        await asyncio.gather(pool.start(), asyncio.to_thread(codecs.preload))
        try:
            await decoder.start()
        except VoxCPMError:
            raise StartupError("the processes that decode uploads did not start; the log may have the reason") from None
        await pool.warm_up()
        progress.report("the voices are loading")
        url = settings.voices.url or str(Path.home() / VOICES_FOLDER)
        objects = await threads.run(Objects, url, settings.voices.timeout_seconds)
        store = await stack.enter_async_context(VoiceStore(objects, settings.voices, pool.info.fingerprint))
        catalog = VoiceCatalog(store)
        builder = VoiceBuilder(pool, decoder, catalog, threads, settings.limits)
        listed = () if directory is None else await threads.run(presets.read, directory)
        catalog.set_presets(await presets.build(listed, builder), presets.default(listed, settings.voices.default))
        gate = AdmissionGate(settings.limits)
        service = VoxCPMService(
            pool=pool,
            builder=builder,
            catalog=catalog,
            threads=threads,
            authenticator=authenticator,
            calls=rpc.calls,
            gate=gate,
            limits=settings.limits,
            metrics=rpc.recent,
            tracing=tracing,
        )
        if admin is not None:
            admin.stats.watch(pool, gate, service.uploads, lambda: store.count)
        if rpc.load_reports is not None:
            rpc.load_reports.watch(pool)
        if metrics is not None:
            metrics.gauge("open_streams", "Streams that are open.", lambda: gate.streams)
            metrics.gauge("upload_bytes", "Recordings of uploads in memory.", lambda: service.uploads.held)
            metrics.watch(pool, engines=engine_metrics)
        gc.collect()
        gc.freeze()  # the objects so far exist until the process ends; collecting them would block the event loop
        gc.set_threshold(GC_THRESHOLD)
        rpc.serve(service)
        rpc.set_ready(pool.healthy)
        address = address or await rpc.open()
        start.finish()
        if summarized:
            log.info(
                await summary(
                    settings,
                    pool,
                    address=address,
                    metrics=metrics_address,
                    admin=admin_address,
                    voices=url,
                    presets=catalog.presets,
                    default=catalog.default,
                )
            )
        stack.push_async_exit(partial(_drain, rpc))
        watch = keep_running(partial(_watch, pool, rpc), "the watch of the engines")
        stack.callback(watch.cancel)
        yield Running(address, pool, rpc)


async def _found_model(settings: Settings) -> Path:
    return await download(settings) if is_repository(settings.model) else find_model(settings)


async def _drain(rpc: RpcServer, kind: type[BaseException] | None, *_: object) -> None:
    """Drain a server at the end of its block; a second signal cancels the block, and then open calls are cut off."""
    if kind is not asyncio.CancelledError:
        await rpc.drain()


async def _watch(pool: EnginePool, rpc: RpcServer) -> None:
    """Report the health of the engines to load balancers."""
    async for serving in pool.health():
        log.log(logging.INFO if serving else logging.ERROR, "health serving=%s", serving)
        rpc.set_ready(serving)


def _ray_pool(settings: Settings) -> RayPool:
    """Engines on Ray nodes. Each node finds the model by itself, so a directory must exist on all nodes."""
    path = Path(settings.model)
    model = str(path.absolute()) if settings.model != "demo" and path.is_dir() else settings.model
    find = partial(checkpoint.resolve, model, settings.revision, settings.cache_dir, progress=False)
    return RayPool(FindAndLoad(find, model_name(settings), settings.engine), settings)


def _local_model(settings: Settings) -> Path | None:
    """The directory of the checkpoint if it is on this host without a download, else None."""
    if settings.model == "demo":
        return find_model(settings)
    return path if (path := Path(settings.model)).is_dir() else None


def model_name(settings: Settings) -> str:
    """The model's name as callers see it. It is never a path."""
    path = Path(settings.model)
    return path.resolve().name if path.is_dir() or path.is_absolute() else settings.model
