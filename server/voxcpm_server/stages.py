"""The stages of the start of one server, in their order.

Each stage opens parts, yields them as one frozen value, and closes them at the end of its block: a server shuts down in
the reverse order of its start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from voxcpm_grpc import progress
from voxcpm_grpc.aio.tasks import close_all, keep_running
from voxcpm_grpc.aio.threads import IoThreads
from voxcpm_grpc.audio import codecs
from voxcpm_grpc.audio.uploads import DecodePool
from voxcpm_grpc.errors import StartupError, VoxCPMError
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.ray.cluster import Membership
from voxcpm_grpc.settings.models import ModelSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.text.lexicon import read_lexicon
from voxcpm_grpc.worker.standby import StandbyProcess
from voxcpm_server.aligners.known import usable
from voxcpm_server.aligners.pool import AlignerPool
from voxcpm_server.auth.authenticator import Authenticator
from voxcpm_server.engines import found_models, joined, local_model, process_pools, ray_pools
from voxcpm_server.http_process import Gateway, gateway_beside
from voxcpm_server.models import Models, load_models, model_names
from voxcpm_server.operation.host import Fronts
from voxcpm_server.operation.merged_metrics import metrics_page, snapshot
from voxcpm_server.operation.metrics import Metrics
from voxcpm_server.rpc.call import AdmissionGate
from voxcpm_server.rpc.tracing import Tracing
from voxcpm_server.services.admin import AdminServer
from voxcpm_server.services.contract import Contract
from voxcpm_server.services.handler import SERVICE
from voxcpm_server.services.health import Health
from voxcpm_server.services.server import RpcServer
from voxcpm_server.services.speech import VoxCPMService
from voxcpm_server.start import Start
from voxcpm_server.summary import summary
from voxcpm_server.text.lexicon import Lexicon, WordList
from voxcpm_server.text.normalize import packages
from voxcpm_server.text.normalize.normalizer import TextNormalizer
from voxcpm_server.voices.store.objects import Objects
from voxcpm_server.voices.store.store import VoiceStore

log = logging.getLogger("voxcpm_server.app")  # logs of operators have these lines under this name

FIRST_FRONT = "front 0"
METRICS = "metrics"  # the host's questions have this topic


@dataclass(frozen=True, slots=True)
class Plan:
    """The server to run.

    served: the settings of each model
    voices: URL of the voice store
    directories: the checkpoint of each model, with its presets; None if it has yet to be found
    standby: the process in which the first engine starts; None without one
    pools: the engines of each model, not yet started; empty if the settings describe them
    contracts: the services beside the speech service
    fronts: the other fronts; None if there is one process
    restarted: True for a front that was lost
    http_metrics: folder for the metrics of the gateways of all fronts
    """

    settings: Settings
    served: Sequence[ModelSettings]
    voices: str
    directories: Sequence[Path | None]
    standby: StandbyProcess | None
    pools: Sequence[EnginePool]
    contracts: Sequence[Contract]
    fronts: Fronts | None
    restarted: bool
    http_metrics: Path | None


@dataclass(frozen=True, slots=True)
class Files:
    """The identities of callers and the lexicon, as their files have them, and threads that read files."""

    authenticator: Authenticator
    threads: IoThreads
    lexicon: Lexicon


@asynccontextmanager
async def files_read(plan: Plan) -> AsyncIterator[Files]:
    """Read the files that the settings name. Raises StartupError."""
    authenticator = Authenticator(plan.settings)
    await authenticator.open()
    with closing(IoThreads()) as threads:
        yield Files(authenticator, threads, await threads.run(_lexicon, plan.settings.text.lexicon))


def _lexicon(path: Path | None) -> Lexicon:
    try:
        return Lexicon() if path is None else Lexicon(WordList(read_lexicon(path)))
    except ValueError as error:
        raise StartupError(f"text.lexicon: {error}") from None


@dataclass(frozen=True, slots=True)
class ModelEngines:
    """The engines of each model, and its checkpoint, which has the presets; None if it is not on this host."""

    pools: Sequence[EnginePool]
    directories: Sequence[Path | None]


@asynccontextmanager
async def engines_elsewhere(plan: Plan) -> AsyncIterator[ModelEngines | None]:
    """The engines that the plan has, or those of a Ray cluster, not yet started; None for engines of this process.

    A server joins the cluster before its first use of gRPC. Raises StartupError.
    """
    if plan.pools or plan.settings.pool != "ray":
        yield ModelEngines(plan.pools, plan.directories) if plan.pools else None
        return
    cluster = Membership(plan.settings.ray.address)
    try:
        pools = ray_pools(plan.served, cluster)
        await joined(cluster)
        yield ModelEngines(pools, [local_model(one.settings) for one in plan.served])
    finally:
        await cluster.leave()


async def engines_here(plan: Plan) -> ModelEngines:
    """The engines of this process, not yet started. Downloads their checkpoints. Raises StartupError."""
    found = await found_models(plan.served, plan.directories)
    return ModelEngines(process_pools(plan.served, found, plan.standby), found)


@dataclass(frozen=True, slots=True)
class Observation:
    """The metrics, with the address of their page, and the traces; None for what is off."""

    metrics: Metrics | None
    address: str | None
    tracing: Tracing | None


@asynccontextmanager
async def observed(plan: Plan) -> AsyncIterator[Observation]:
    """Serve the metrics, or give them to the host of several fronts, and send traces. Raises StartupError."""
    async with AsyncExitStack() as stack:
        address = plan.settings.metrics.listen
        metrics = Metrics() if address else None
        if metrics is not None and plan.fronts is not None:
            plan.fronts.answer(METRICS, lambda: asyncio.to_thread(snapshot, metrics.registry))
        elif metrics is not None:
            address = stack.enter_context(metrics_page(metrics.registry, address or ""))
            log.info("metrics are at http://%s/metrics", address)
        tracing = None
        if plan.settings.tracing.endpoint:
            names = {one.name: one.descriptor.full_name for one in plan.contracts}
            tracing = Tracing(plan.settings.tracing, SERVICE, contracts=names)
            stack.push_async_callback(tracing.close)
        yield Observation(metrics, address, tracing)


@dataclass(frozen=True, slots=True)
class AdminPort:
    """The admin port, and its address; None until a front that was lost is ready again."""

    server: AdminServer
    address: str | None


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports; None for those that are off. `address` is None until a front that was lost is ready again."""

    rpc: RpcServer
    address: str | None
    admin: AdminPort | None
    gateway: Gateway | None

    async def open(self) -> str:
        """Open the port of the service, and return its address with the real port. Raises StartupError."""
        return await self.rpc.open(None if self.gateway is None else self.gateway.upstream)


@asynccontextmanager
async def ports_open(plan: Plan, files: Files, observation: Observation, start: Start) -> AsyncIterator[Ports]:
    """Open the ports, which refuse calls until `accept_calls`. Raises StartupError."""
    metrics, tracing = observation.metrics, observation.tracing
    rpc = RpcServer(
        plan.settings, expected_seconds=start.remaining, metrics=metrics, tracing=tracing, contracts=plan.contracts
    )
    start.report = rpc.report_start
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(_admin_port(plan, files, rpc))
        stack.push_async_callback(rpc.stop)
        gateway = await stack.enter_async_context(gateway_beside(plan.settings, plan.http_metrics))
        if gateway is not None:
            log.info("HTTP is at http://%s", gateway.address)
        ports = Ports(rpc, None, admin, gateway)
        if not plan.restarted:
            ports = replace(ports, address=await ports.open())
            log.info("start: the port %s is open; calls are refused until the server is ready", ports.address)
        yield ports


@asynccontextmanager
async def _admin_port(plan: Plan, files: Files, rpc: RpcServer) -> AsyncIterator[AdminPort | None]:
    if not plan.settings.admin.listen:
        yield None
        return
    server, address = AdminServer(plan.settings, rpc, files.authenticator, plan.fronts), None
    try:
        if not plan.restarted:
            address = await server.open()
            log.info("the admin service listens on %s", address)
        yield AdminPort(server, address)
    finally:
        await server.stop()


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes that the server works with: engines, decoders of uploads, one that normalizes texts, and aligners.

    aligners: None if there are none
    """

    engines: ModelEngines
    decoder: DecodePool
    normalizer: TextNormalizer
    aligners: AlignerPool | None


@asynccontextmanager
async def processes_started(plan: Plan, elsewhere: ModelEngines | None) -> AsyncIterator[Processes]:
    """Start the processes, and let a first request run on each engine. Raises StartupError."""
    settings = plan.settings
    engines = elsewhere or await engines_here(plan)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(lambda: close_all(pool.close() for pool in engines.pools))
        progress.report("the model is loading")
        decoder = DecodePool(settings.decode_workers, log=settings.log)
        stack.push_async_callback(decoder.close)
        normalizer = TextNormalizer(log=settings.log)
        stack.push_async_callback(normalizer.close)
        if settings.text.start_normalizer and packages.installed():
            normalizer.start()
        aligners = await stack.enter_async_context(_aligners(settings))
        starts = [pool.start() for pool in engines.pools]
        if aligners is not None and settings.words.start_aligners:
            starts.append(aligners.start())
        await asyncio.gather(*starts, _started(decoder), asyncio.to_thread(codecs.preload))
        await asyncio.gather(*(pool.warm_up() for pool in engines.pools))
        yield Processes(engines, decoder, normalizer, aligners)


@asynccontextmanager
async def _aligners(settings: Settings) -> AsyncIterator[AlignerPool | None]:
    """The aligners that can be used; None if there are none. Raises StartupError."""
    names = usable(settings.words.aligners)
    if not names:
        yield None
        return
    aligners = AlignerPool(names, settings.words.processes, log=settings.log)
    try:
        yield aligners
    finally:
        await aligners.close()


async def _started(decoder: DecodePool) -> None:
    try:
        await decoder.start()
    except VoxCPMError:
        raise StartupError("the processes that decode uploads did not start; the log may have the reason") from None


@dataclass(frozen=True, slots=True)
class Voices:
    """The models, each with its voices, and the store of the voices of callers."""

    models: Models
    store: VoiceStore


@asynccontextmanager
async def voices_loaded(plan: Plan, files: Files, processes: Processes) -> AsyncIterator[Voices]:
    """Open the voice store, and load the presets of the models. Raises StartupError."""
    progress.report("the voices are loading")
    settings, threads = plan.settings, files.threads
    pools, directories = processes.engines.pools, processes.engines.directories
    objects = await threads.run(Objects, plan.voices, settings.voices.timeout_seconds)
    async with VoiceStore(objects, settings.voices, model_names(pools)) as store:
        yield Voices(await load_models(pools, directories, store, processes.decoder, threads, settings), store)


def made_service(
    plan: Plan, files: Files, observation: Observation, ports: Ports, processes: Processes, voices: Voices
) -> VoxCPMService:
    """The RPCs of the service."""
    return VoxCPMService(
        models=voices.models,
        threads=files.threads,
        authenticator=files.authenticator,
        calls=ports.rpc.calls,
        gate=AdmissionGate(plan.settings.limits),
        limits=plan.settings.limits,
        lexicon=files.lexicon,
        normalizer=processes.normalizer,
        aligners=processes.aligners,
        metrics=ports.rpc.recent,
        tracing=observation.tracing,
        fronts=plan.fronts,
    )


def export_statistics(
    observation: Observation, ports: Ports, processes: Processes, voices: Voices, service: VoxCPMService
) -> None:
    """Let the metrics and the admin service show engines and streams from now on."""
    pools = processes.engines.pools
    if ports.admin is not None:
        ports.admin.server.stats.watch(pools, service.gate, service.uploads, lambda: voices.store.count)
        ports.admin.server.serve(voices.models)
    if observation.metrics is not None:
        observation.metrics.watch(pools, service.gate, service.uploads, ports.rpc.load)


async def accept_calls(plan: Plan, ports: Ports, service: VoxCPMService, models: Models) -> str:
    """Accept calls from now on. Returns the address of the service. Raises StartupError."""
    rpc = ports.rpc
    rpc.serve(service, {one.name: one.implement(service, models) for one in plan.contracts})
    for one in models:
        rpc.health.set_model(one.name, one.pool.healthy)
    if plan.served[0].name:
        rpc.health.list_models(one.name for one in models)
    rpc.set_ready(True)
    address = ports.address or await ports.open()
    if ports.admin is not None and ports.admin.address is None:
        await ports.admin.server.open()
    return address


async def log_summary(plan: Plan, observation: Observation, ports: Ports, voices: Voices, address: str) -> None:
    """Log the summary of a server that is ready; of several fronts the first one logs it, once."""
    if plan.fronts is not None and (plan.fronts.name != FIRST_FRONT or plan.restarted):
        return
    lines = await summary(
        plan.settings,
        voices.models,
        address=address,
        metrics=observation.address,
        admin=ports.admin and ports.admin.address,
        http=ports.gateway and ports.gateway.address,
        voices=plan.voices,
    )
    log.info(lines)


@asynccontextmanager
async def drained(rpc: RpcServer, models: Models) -> AsyncIterator[None]:
    """Drain the server at the end of the block. Inside, report the health of the engines and the load of the process.

    A second signal cancels the block or the drain; open calls are then cut off.
    """
    async with AsyncExitStack() as stack:
        stack.push_async_exit(partial(_drain, rpc))
        measuring = keep_running(rpc.load.watch, "the measurement of the event loop")
        stack.callback(measuring.cancel)
        for one in models:
            watch = keep_running(partial(_watch, one.pool, one.name, rpc.health), "the watch of the engines")
            stack.callback(watch.cancel)
        yield


async def _drain(rpc: RpcServer, kind: type[BaseException] | None, *_: object) -> None:
    if kind is asyncio.CancelledError:
        await rpc.cut_off()
        return
    try:
        await rpc.drain()
    except asyncio.CancelledError:
        await rpc.cut_off()
        raise


async def _watch(pool: EnginePool, name: str, health: Health) -> None:
    async for serving in pool.health():  # load balancers ask for it
        log.log(logging.INFO if serving else logging.ERROR, "health serving=%s model=%s", serving, name)
        health.set_model(name, serving)
