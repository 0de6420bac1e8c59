"""One server: built from settings, started, and drained at its end."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from voxcpm_grpc import progress
from voxcpm_grpc.audio import DecodePool, codecs
from voxcpm_grpc.errors import StartupError, VoxCPMError
from voxcpm_grpc.home import needed_home
from voxcpm_grpc.ipc.socket_folder import SocketFolder
from voxcpm_grpc.lexicon import read_lexicon
from voxcpm_grpc.listen_address import is_unix, listen_address
from voxcpm_grpc.merged_metrics import metrics_page, snapshot
from voxcpm_grpc.pool.background import close_all, keep_running
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.ray.cluster import Membership
from voxcpm_grpc.settings.models import models
from voxcpm_grpc.settings.schema import Settings
from voxcpm_server import http
from voxcpm_server.auth.authenticator import Authenticator
from voxcpm_server.auth.certificate_names import certificate_names
from voxcpm_server.known_contracts import contracts
from voxcpm_server.pools import found_models, joined, local_model, process_pools, ray_pools
from voxcpm_server.rpc.admin import AdminServer
from voxcpm_server.rpc.call import AdmissionGate
from voxcpm_server.rpc.fronts import Fronts
from voxcpm_server.rpc.handler import SERVICE
from voxcpm_server.rpc.health import Health
from voxcpm_server.rpc.metrics import Metrics
from voxcpm_server.rpc.models import Model, Models
from voxcpm_server.rpc.server import RpcServer
from voxcpm_server.rpc.service import VoxCPMService
from voxcpm_server.rpc.tracing import Tracing
from voxcpm_server.speech.spelling import Lexicon, WordList
from voxcpm_server.start import Start
from voxcpm_server.summary import summary
from voxcpm_server.text import packages
from voxcpm_server.text.normalizer import TextNormalizer
from voxcpm_server.voices import presets
from voxcpm_server.voices.builder import VoiceBuilder
from voxcpm_server.voices.catalog import VoiceCatalog
from voxcpm_server.voices.store.io_threads import IoThreads
from voxcpm_server.voices.store.objects import Objects
from voxcpm_server.voices.store.store import VoiceStore
from voxcpm_server.wire.requests import RequestReader
from voxcpm_server.wire.upload_requests import UploadReader

log = logging.getLogger(__name__)

METRICS = "metrics"  # topic of the host's questions
FIRST_FRONT = "front 0"
VOICES_FOLDER = ".local/share/voxcpm-grpc/voices"  # under the user's home
GC_THRESHOLD = 10_000  # new objects between two collections; Python's 700 cost a loaded front 8 % in a profile


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
    pool: EnginePool | None = None,
    pools: Sequence[EnginePool] = (),
    fronts: Fronts | None = None,
    restarted: bool = False,
    http_metrics: Path | None = None,
) -> AsyncIterator[Running]:
    """Run a server inside the block and drain it at the end, unless the block is cancelled. Raises StartupError.

    directory, directories: the checkpoint of the only model, or of each, with its presets; None finds it from the
        settings
    pool, pools: engines of the only model, or of each, to use instead of those that the settings describe, not yet
        started
    fronts: the other fronts, if the server is one of several; their host starts the engines and serves the metrics
    restarted: True for a front that was lost: its port opens when it is ready, and the others take the connections
    http_metrics: folder for the metrics of the gateways of all fronts
    """
    served = models(settings)
    url = settings.voices.url or str(needed_home("set voices.url to a place for voices") / VOICES_FOLDER)
    directories = directories or [directory] * len(served)
    pools = pools or ([] if pool is None else [pool])
    async with AsyncExitStack() as stack:
        start = Start(engine_lines=fronts is None)
        stack.enter_context(start.reported())
        authenticator = Authenticator(settings)
        await authenticator.open()
        threads = IoThreads()
        stack.callback(threads.close)
        lexicon = await threads.run(_lexicon, settings.text.lexicon)
        if not pools and settings.pool == "ray":
            cluster = Membership(settings.ray.address)
            pools = ray_pools(served, cluster)
            directories = [local_model(one.settings) for one in served]
            stack.push_async_callback(cluster.leave)
            await joined(cluster)
        metrics_address = settings.metrics.listen
        metrics = Metrics() if metrics_address else None
        if metrics is not None and fronts is not None:
            fronts.answer(METRICS, partial(_snapshot, metrics))
        elif metrics is not None:
            metrics_address = stack.enter_context(metrics_page(metrics.registry, metrics_address or ""))
            log.info("metrics are at http://%s/metrics", metrics_address)
        offered = contracts(settings.contracts)
        tracing = None
        if settings.tracing.endpoint:
            tracing = Tracing(
                settings.tracing, SERVICE, contracts={one.name: one.descriptor.full_name for one in offered}
            )
            stack.push_async_callback(tracing.close)
        rpc = RpcServer(settings, expected_seconds=start.remaining, metrics=metrics, tracing=tracing, contracts=offered)
        start.report = rpc.report_start
        admin, admin_address = None, None
        if settings.admin.listen:
            admin = AdminServer(settings, rpc, authenticator, fronts)
            stack.push_async_callback(admin.stop)
        if admin is not None and not restarted:
            admin_address = await admin.open()
            log.info("the admin service listens on %s", admin_address)
        stack.push_async_callback(rpc.stop)
        local, http_address = None, None
        if settings.http.listen:
            sockets = SocketFolder()
            stack.callback(sockets.close)
            local = f"unix:{sockets.path / 'grpc'}"
            names = certificate_names(settings.tls.cert) if settings.tls.cert else ()
            allowing = settings.http.model_copy(update={"allowed_hosts": (*settings.http.allowed_hosts, *names)})
            upstream = http.Upstream(local, _port(settings.listen), settings.tls.cert is not None)
            web = http.served(allowing, upstream, settings.log, shared=settings.fronts_share_port, metrics=http_metrics)
            http_address = await stack.enter_async_context(web)
            log.info("HTTP is at http://%s", http_address)
        address = ""
        if not restarted:
            address = await rpc.open(local)
            log.info("start: the port %s is open; calls are refused until the server is ready", address)
        if not pools:
            directories = found = await found_models(served, directories)
            pools = process_pools(served, found)
        stack.push_async_callback(_close_all, pools)
        progress.report("the model is loading")
        decoder = DecodePool(settings.decode_workers, log=settings.log)
        stack.push_async_callback(decoder.close)
        normalizer = TextNormalizer(log=settings.log)
        stack.push_async_callback(normalizer.close)
        if settings.text.start_normalizer and packages.installed():
            normalizer.start()
        await asyncio.gather(*(each.start() for each in pools), _started(decoder), asyncio.to_thread(codecs.preload))
        await asyncio.gather(*(each.warm_up() for each in pools))
        progress.report("the voices are loading")
        objects = await threads.run(Objects, url, settings.voices.timeout_seconds)
        store = await stack.enter_async_context(VoiceStore(objects, settings.voices, fingerprints(pools)))
        made = Models(
            [
                await _model(each, path, pools, store, decoder, threads, settings)
                for each, path in zip(pools, directories, strict=True)
            ]
        )
        gate = AdmissionGate(settings.limits)
        service = VoxCPMService(
            models=made,
            threads=threads,
            authenticator=authenticator,
            calls=rpc.calls,
            gate=gate,
            limits=settings.limits,
            lexicon=lexicon,
            normalizer=normalizer,
            metrics=rpc.recent,
            tracing=tracing,
            fronts=fronts,
        )
        if admin is not None:
            admin.stats.watch(pools, gate, service.uploads, lambda: store.count)
            admin.loras.serve(made)
        if metrics is not None:
            metrics.gauge("open_streams", "Streams that are open.", lambda: gate.streams)
            metrics.gauge("upload_bytes", "Recordings of uploads in memory.", lambda: service.uploads.held)
            metrics.gauge(
                "front_loop_busy", "Share of the time in which the event loop has work.", lambda: rpc.load.busy
            )
            metrics.gauge("front_loop_lag_seconds", "Longest delay of the event loop lately.", lambda: rpc.load.lag)
            metrics.gauge("front_full", "1 if the event loop has work almost all of the time.", lambda: rpc.load.full)
            metrics.watch(pools)
        gc.collect()
        gc.freeze()  # the objects so far exist until the process ends; collecting them would block the event loop
        gc.set_threshold(GC_THRESHOLD)
        rpc.serve(service, {one.name: one.implement(service, made) for one in offered})
        for one in made:
            rpc.health.set_model(one.name, one.pool.healthy)
        if served[0].name:
            rpc.health.list_models(one.name for one in made)
        rpc.set_ready(True)
        address = address or await rpc.open(local)
        if admin is not None and restarted:
            await admin.open()
        start.finish()
        if fronts is None or (fronts.name == FIRST_FRONT and not restarted):
            log.info(
                await summary(
                    settings,
                    made,
                    address=address,
                    metrics=metrics_address,
                    admin=admin_address,
                    http=http_address,
                    voices=url,
                )
            )
        stack.push_async_exit(partial(_drain, rpc))
        measuring = keep_running(rpc.load.watch, "the measurement of the event loop")
        stack.callback(measuring.cancel)
        for one in made:
            watch = keep_running(partial(_watch, one.pool, one.name, rpc.health), "the watch of the engines")
            stack.callback(watch.cancel)
        yield Running(address, pools, rpc)


async def _snapshot(metrics: Metrics) -> bytes:
    return await asyncio.to_thread(snapshot, metrics.registry)


async def _started(decoder: DecodePool) -> None:
    try:
        await decoder.start()
    except VoxCPMError:
        raise StartupError("the processes that decode uploads did not start; the log may have the reason") from None


def _port(listen: str) -> int:
    """The port of an address to listen on; 0 for a Unix socket."""
    return 0 if is_unix(listen) else listen_address(listen).port


async def _close_all(pools: Sequence[EnginePool]) -> None:
    await close_all(pool.close() for pool in pools)


def fingerprints(pools: Sequence[EnginePool]) -> Mapping[str, str]:
    """The names of the models by the fingerprints of their checkpoints; of the same checkpoint the first one."""
    return {pool.info.fingerprint: pool.info.name for pool in reversed(pools)}


async def _model(
    pool: EnginePool,
    directory: Path | None,
    pools: Sequence[EnginePool],
    store: VoiceStore,
    decoder: DecodePool,
    threads: IoThreads,
    settings: Settings,
) -> Model:
    """A model with its presets, which are those of `directory`. Raises StartupError."""
    catalog = VoiceCatalog(store, pool.info.fingerprint, fingerprints(pools))
    builder = VoiceBuilder(pool, decoder, catalog, threads, settings.limits)
    listed = () if directory is None else await threads.run(presets.read, directory)
    wanted = settings.voices.default if pool is pools[0] or settings.voices.default == "none" else "auto"
    catalog.set_presets(await presets.build(listed, builder), presets.default(listed, wanted))
    reader = RequestReader(pool.info, settings.limits, pool.adapters.find, style_in_text=settings.text.style_in_text)
    return Model(pool, builder, catalog, reader, UploadReader(reader))


async def _drain(rpc: RpcServer, kind: type[BaseException] | None, *_: object) -> None:
    """Drain a server at the end of its block. A second signal cancels block or drain; open calls are then cut off."""
    if kind is asyncio.CancelledError:
        await rpc.cut_off()
        return
    try:
        await rpc.drain()
    except asyncio.CancelledError:
        await rpc.cut_off()
        raise


async def _watch(pool: EnginePool, name: str, health: Health) -> None:
    """Report the health of the engines of a model to load balancers."""
    async for serving in pool.health():
        log.log(logging.INFO if serving else logging.ERROR, "health serving=%s model=%s", serving, name)
        health.set_model(name, serving)


def _lexicon(path: Path | None) -> Lexicon:
    try:
        return Lexicon() if path is None else Lexicon(WordList(read_lexicon(path)))
    except ValueError as error:
        raise StartupError(f"text.lexicon: {error}") from None
