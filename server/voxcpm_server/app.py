"""One server: built from settings, started, and drained at its end."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc

from voxcpm_grpc import checkpoint
from voxcpm_grpc.audio import DecodePool
from voxcpm_grpc.errors import StartupError, VoxCPMError
from voxcpm_grpc.pool.background import keep_running
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.ray.ray_pool import FindAndLoad, RayPool
from voxcpm_grpc.settings.schema import Settings, engines
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.rpc.call import AdmissionGate
from voxcpm_server.rpc.handler import ParseInterceptor
from voxcpm_server.rpc.health import Health, enable_reflection
from voxcpm_server.rpc.service import VoxCPMService
from voxcpm_server.voices import presets
from voxcpm_server.voices.builder import VoiceBuilder
from voxcpm_server.voices.catalog import VoiceCatalog
from voxcpm_server.voices.store.io_threads import IoThreads
from voxcpm_server.voices.store.objects import Objects
from voxcpm_server.voices.store.store import VoiceStore

log = logging.getLogger(__name__)

VOICES_FOLDER = ".local/share/voxcpm-grpc/voices"  # under the user's home
GC_THRESHOLD = 10_000  # new objects between two collections; Python's 700 cost a loaded front 8 % in a profile
STOP_SECONDS = 1.0  # after draining only health watches are open, and they never end by themselves


@dataclass(frozen=True, slots=True)
class Running:
    """A server that accepts calls. `address` has the real port."""

    address: str
    pool: EnginePool
    gate: AdmissionGate


@asynccontextmanager
async def running_server(
    settings: Settings, *, directory: Path | None = None, pool: EnginePool | None = None
) -> AsyncIterator[Running]:
    """Run a server inside the block and drain it at the end. Raises StartupError.

    directory: the checkpoint, with its presets; None finds it from the settings
    pool: engines to use instead of those that the settings describe, not yet started
    """
    async with AsyncExitStack() as stack:
        threads = IoThreads()
        stack.callback(threads.close)
        if pool is None and settings.pool == "ray":
            pool = _ray_pool(settings)
            directory = _local_model(settings)
            stack.push_async_callback(pool.close)
            await pool.join()
        server = grpc.aio.server(interceptors=(ParseInterceptor(),), options=_options(settings))
        address = _bind(server, settings.listen)  # before the model loads, which can take minutes
        stack.push_async_callback(server.stop, 0)
        if pool is None:
            directory = directory or await threads.run(find_model, settings)
            pool = EnginePool.of_processes(
                directory, model_name(settings), engines(settings), settings.supervision, log_level=settings.log_level
            )
        stack.push_async_callback(pool.close)
        decoder = DecodePool(settings.decode_workers)
        stack.push_async_callback(decoder.close)
        await pool.start()
        try:
            await decoder.start()
        except VoxCPMError:
            raise StartupError("the processes that decode uploads did not start; the log may have the reason") from None
        url = settings.voices.url or str(Path.home() / VOICES_FOLDER)
        objects = await threads.run(Objects, url, settings.voices.timeout_seconds)
        store = await stack.enter_async_context(VoiceStore(objects, settings.voices, pool.info.fingerprint))
        catalog = VoiceCatalog(store)
        builder = VoiceBuilder(pool, decoder, catalog, threads, settings.limits)
        listed = () if directory is None else await threads.run(presets.read, directory)
        catalog.set_presets(await presets.build(listed, builder), presets.default(listed, settings.voices.default))
        gate, health = AdmissionGate(settings.limits), Health()
        tts_pb2_grpc.add_VoxCPMServiceServicer_to_server(
            VoxCPMService(
                pool=pool,
                builder=builder,
                catalog=catalog,
                threads=threads,
                gate=gate,
                limits=settings.limits,
            ),
            server,
        )
        await health.register(server)
        enable_reflection(server)
        await server.start()
        gc.collect()
        gc.freeze()  # the objects so far exist until the process ends; collecting them would block the event loop
        gc.set_threshold(GC_THRESHOLD)
        await health.set(serving=pool.healthy)
        watch = keep_running(lambda: _watch(pool, health), "the watch of the engines")
        stack.callback(watch.cancel)
        try:
            yield Running(address, pool, gate)
        finally:
            watch.cancel()
            await _drain(server, gate, health, settings.drain_seconds)


async def _drain(server: grpc.aio.Server, gate: AdmissionGate, health: Health, seconds: float) -> None:
    await health.shut_down()  # first, because stopping closes the listener at once and load balancers need notice
    gate.close()
    if gate.streams:
        log.info("draining streams=%d seconds=%g", gate.streams, seconds)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await gate.idle()
    await server.stop(STOP_SECONDS if not gate.streams else 0)


async def _watch(pool: EnginePool, health: Health) -> None:
    """Report the health of the engines to load balancers."""
    async for serving in pool.health():
        log.log(logging.INFO if serving else logging.ERROR, "health serving=%s", serving)
        await health.set(serving=serving)


def find_model(settings: Settings) -> Path:
    """The directory of the checkpoint, downloaded if it is not here. Blocks. Raises StartupError."""
    return checkpoint.resolve(settings.model, settings.revision, settings.cache_dir)


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


def _options(settings: Settings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        (
            "grpc.so_reuseport",
            int(settings.fronts_share_port),
        ),  # otherwise two servers on one port would share its calls
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]


def _bind(server: grpc.aio.Server, listen: str) -> str:
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError:
        port = 0
    if not port:
        raise StartupError(f"cannot listen on {listen}: the port is taken, or the address is not this host's")
    return listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"
